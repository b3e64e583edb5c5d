"""A classifier for tests, and a run trained once for all tests that look at what it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.plugins import RECIPES
from headway.recipes.classification.config import Config
from headway.spec import Data, Job, to_plain
from tests.recipes.folders import run_folder
from tests.recipes.translation.tiny import train_in
from tests.shared import made_once

SMALLEST: dict[str, Any] = {
    "model_size": "small",
    "image_size": 32,
    "train_samples": 64,
    "val_samples": 32,
    "test_samples": 32,
    "epochs": 1,
    "batch_size": 16,
}
# About ten seconds of one core, and yet it tells most leaves apart.
LEARNS: dict[str, Any] = {"image_size": 32, "train_samples": 512, "val_samples": 64, "test_samples": 64, "epochs": 7}


def settings(**changes: Any) -> Config:
    return Config(**{**SMALLEST, **changes})


def job(data: Data | None = None, **changes: Any) -> Job:
    config = RECIPES["classification"].load_config()(**{**SMALLEST, **changes})
    return Job(name="leaves", recipe="classification", config=to_plain(config), seed=3, data=data or Data())


def trained_run(factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, trained once for the whole session."""
    settings = {**LEARNS, "without": ("Aster___healthy",)}
    return made_once(factory, "leaves-1", lambda folder: train_in(run_folder(folder, job(**settings))))
