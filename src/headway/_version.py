"""The version, read by the build and by `headway --version`."""

__version__ = "0.1.0"
