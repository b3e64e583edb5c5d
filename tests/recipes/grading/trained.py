"""A small grader that is trained once, for all tests that look at what it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.spec import Job
from tests.recipes.folders import run_folder
from tests.recipes.grading.jobs import grading_job
from tests.shared import made_once


def trained_grader(factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, trained once for the whole session."""
    return made_once(factory, "cards-1", lambda folder: train_in(folder, grading_job()))


def train_in(folder: Path, job: Job, **more: str) -> Path:
    """By a rank of its own, as the supervisor would start it."""
    run_folder(folder, job)
    return go_on(folder, **more)


def go_on(folder: Path, **more: str) -> Path:
    env = {**os.environ, "HEADWAY_RUN_URL": str(folder), "OMP_NUM_THREADS": "1", **more}
    command = [sys.executable, "-m", "headway.recipes.__main__"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder
