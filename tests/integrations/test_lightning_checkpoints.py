"""Which checkpoint Lightning's integration continues from. Lightning itself is in test_frameworks.py."""

from __future__ import annotations

import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from headway.integrations import lightning, session


def checkpoint(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"optimizer_states")
    return path


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    run_dir = str(tmp_path / "runs/mine/files")
    now = session.Session({"HEADWAY_ATTEMPT": "2", "HEADWAY_RUN_DIR": run_dir, "HEADWAY_CODE_DIR": str(tmp_path)})
    monkeypatch.setattr(session, "current", lambda: now)
    for run in ("mine", "other"):
        for name in ("plan.json", "intent.json"):
            (tmp_path / "runs" / run).mkdir(parents=True, exist_ok=True)
            (tmp_path / "runs" / run / name).write_text("{}")
    return SimpleNamespace(default_root_dir=str(tmp_path), checkpoint_callbacks=[])


def test_copies_in_run_folders_are_not_continued_from(trainer: SimpleNamespace, tmp_path: Path) -> None:
    own = checkpoint(tmp_path / "checkpoints/last.ckpt")
    checkpoint(tmp_path / "runs/mine/files/workdir/checkpoints/last.ckpt")
    checkpoint(tmp_path / "runs/other/files/workdir/checkpoints/last.ckpt")
    assert lightning._checkpoints(trainer) == [str(own)]


def test_checkpoints_that_the_program_wrote_to_its_run_dir_are_found(trainer: SimpleNamespace, tmp_path: Path) -> None:
    own = checkpoint(tmp_path / "runs/mine/files/logs/version_0/checkpoints/epoch=0.ckpt")
    checkpoint(tmp_path / "runs/mine/files/earlier/a0001/last.ckpt")
    assert lightning._checkpoints(trainer) == [str(own)]
