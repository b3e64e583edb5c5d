from tests.cli.conftest import headway as typed  # noqa: F401
