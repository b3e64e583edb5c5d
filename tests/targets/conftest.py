"""What tests of several targets share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.testbed.sshd import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real sshd on this machine, with keys and a configuration of its own."""
    server = Server(tmp_path_factory.mktemp("sshd"))
    server.start()
    yield server
    server.stop()
