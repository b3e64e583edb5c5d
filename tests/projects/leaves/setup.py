from setuptools import find_packages, setup

setup(name="leaves", version="0.1", packages=find_packages())
