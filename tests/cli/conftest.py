"""Run the command line as a user does, in this process where that is enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from headway.cli import main


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


Headway = Callable[..., Said]


@pytest.fixture
def headway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Headway:
    """`headway("plan", "--json")` in an empty folder, with an index of its own. A traceback is never an answer."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HEADWAY_DEBUG", raising=False)

    def type_(*words: object) -> Said:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        assert "bug in Headway" not in captured.err, (tmp_path / "home" / "crash.txt").read_text()
        return Said(code, captured.out, captured.err)

    return type_
