"""A run that is trained once, for all tests that look at what it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.spec import Data, Source
from tests.recipes.folders import captioning_job, run_folder
from tests.shared import made_once

# A dozen seconds of one core, and yet it learns to say what a lone thing is and where.
LEARNS = {
    "image_size": 64,
    "width": 16,
    "embedding_size": 64,
    "hidden_size": 128,
    "heads": 4,
    "epochs": 6,
    "batch_size": 32,
    "captions": 3,
    "train_samples": 1000,
    "val_samples": 60,
    "test_samples": 80,
}
LONE = (Source(source="builtin:scenes", where={"kind": "one"}),)


def trained_run(factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, trained once for the whole session."""
    return made_once(factory, "captions-1", _train)


def _train(folder: Path) -> None:
    """By a rank of its own, as the supervisor would start it."""
    run_folder(folder, captioning_job(Data(train=LONE, val=LONE, test=LONE), **LEARNS))
    env = {**os.environ, "HEADWAY_RUN_URL": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "headway.recipes.__main__"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
