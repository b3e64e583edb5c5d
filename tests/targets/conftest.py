"""What tests of several targets share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headway.packaging import supervisor_runtime
from tests.shared import made_once
from tests.testbed.sshd import Server


@pytest.fixture(scope="session", autouse=True)
def _one_runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make the supervisor's archive once. Tests have a HEADWAY_HOME of their own, and each would make it again."""
    folder = made_once(tmp_path_factory, "runtimes", lambda folder: folder.mkdir())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor_runtime, "_folder", lambda: folder)
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real sshd on this machine, with keys and a configuration of its own."""
    server = Server(tmp_path_factory.mktemp("sshd"))
    server.start()
    yield server
    server.stop()
