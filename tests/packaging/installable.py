"""A project that pip installs without an index: its build backend is in its own folder."""

from __future__ import annotations

# Builds its wheel with the standard library alone, because no index can be reached from these containers.
BACKEND = """
import zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "greeting-1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.write("src/greeting.py", "greeting.py")
        wheel.writestr("greeting-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: greeting\\nVersion: 1.0\\n")
        tag = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        wheel.writestr("greeting-1.0.dist-info/WHEEL", tag)
        wheel.writestr("greeting-1.0.dist-info/RECORD", "")
    return name
"""
PYPROJECT = """[project]
name = "greeting"
version = "1.0"
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
FILES = {"src/greeting.py": "WORDS = 'hello'\n", "backend.py": BACKEND, "pyproject.toml": PYPROJECT}
