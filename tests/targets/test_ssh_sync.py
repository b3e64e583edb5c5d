"""Files fetched from a host: the real agent, started here without ssh in between."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.targets.ssh import agent
from headway.targets.ssh.connection import CHUNK_BYTES, Host, Machine, _Session
from headway.targets.ssh.options import Options
from headway.targets.ssh.sync import fetch_file


class LocalHost(Host):
    """A host that is this machine. `after_read` is called once the agent has answered the first read."""

    def exchange(self, verb: str, body: bytes = b"", **request: Any) -> tuple[dict[str, Any], bytes]:
        found = super().exchange(verb, body, **request)
        if verb == "read" and request["offset"] == 0:
            self.after_read()
        return found

    def after_read(self) -> None:
        pass


@pytest.fixture
def host() -> Iterator[LocalHost]:
    argv = [sys.executable, "-I", str(agent.__file__), "serve"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().decode().strip() == agent.GREETING
    session = _Session(process, tempfile.TemporaryFile())  # noqa: SIM115  the session closes it
    with LocalHost(Machine(host="here"), Options(host="here"), session) as host:
        yield host


@pytest.mark.parametrize("size", [0, 5, CHUNK_BYTES, 2 * CHUNK_BYTES + 7])
def test_a_file_of_any_size_arrives_whole(host: LocalHost, tmp_path: Path, size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    (tmp_path / "there").write_bytes(content[:size])
    assert fetch_file(host, str(tmp_path / "there"), tmp_path / "here")
    assert (tmp_path / "here").read_bytes() == content[:size]


def test_a_large_file_that_vanishes_during_the_transfer_is_not_published(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "there.bin", tmp_path / "mirror" / "here.bin"
    there.write_bytes(b"x" * (3 * CHUNK_BYTES))
    monkeypatch.setattr(host, "after_read", there.unlink)
    assert not fetch_file(host, str(there), here)
    assert list(here.parent.iterdir()) == [], "neither the first part nor a temporary file is left"
