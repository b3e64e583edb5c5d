"""Whose something is: one id a home folder, whoever asks first, and a name for people."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headway.rundir.submission import OWNER_FILE, owner, owner_id


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USER", "alice")
    return tmp_path / "home"


def test_an_id_is_made_once_and_says_nothing_of_the_user(home: Path) -> None:
    assert owner_id() == "", "whoever only looks makes none"
    assert not home.exists()
    first = owner()
    assert first == owner()
    assert first.id == owner_id() == (home / OWNER_FILE).read_text().strip()
    assert len(first.id) == 16
    assert first.name == f"alice@{socket.gethostname()}"
    assert [path.name for path in home.iterdir()] == [OWNER_FILE]


def test_of_many_processes_at_once_all_have_the_same_id() -> None:
    code = "from headway.rundir.submission import owner; print(owner().id)"
    asked = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(8)]
    assert {process.communicate()[0] for process in asked} == {f"{owner_id()}\n"}


def test_a_home_folder_that_cannot_be_written_stops_nothing_and_is_said(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home.write_text("a file")
    with caplog.at_level(logging.WARNING):
        assert owner().id == ""
    assert "headway gc will not remove what this run creates" in caplog.text
