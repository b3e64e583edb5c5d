"""A real registry for images, Debian's, on loopback, with its folder gone afterwards."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until

CONFIG = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """host:port of an empty one."""
    if shutil.which("docker-registry") is None:
        pytest.skip("docker: docker-registry is not installed: scripts/test-docker installs it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = tmp_path / "registry.yml"
    config.write_text(CONFIG.format(folder=tmp_path / "registry", port=port))
    log = (tmp_path / "registry.log").open("wb")
    process = subprocess.Popen(["docker-registry", "serve", str(config)], stdout=log, stderr=log)
    try:
        _await(port, process)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
        log.close()


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    def listens() -> bool:
        assert process.poll() is None, "the registry ended"
        with socket.socket() as line:
            return line.connect_ex(("127.0.0.1", port)) == 0

    wait_until(listens, "the registry listens")
