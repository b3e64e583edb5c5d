"""The shell in which the projects' authors type."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.projects.unchanged import KEY


@pytest.fixture(autouse=True)
def _shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_KEY", KEY)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
