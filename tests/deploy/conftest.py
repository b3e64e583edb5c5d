"""The command line as it is typed, for deploying too."""

from __future__ import annotations

from tests.cli.conftest import headway  # noqa: F401
