"""A translator for tests: small enough to be made in milliseconds, and a run trained once for all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.data.text import BpeTokenizer
from headway.plugins import RECIPES
from headway.recipes.translation.config import Config
from headway.recipes.translation.model import Translator
from headway.spec import Data, Job, to_plain
from tests.recipes.folders import run_folder
from tests.shared import made_once

SMALLEST: dict[str, Any] = {
    "model_size": "tiny",
    "encoder_layers": 1,
    "decoder_layers": 2,
    "d_model": 16,
    "dim_feedforward": 32,
    "heads": 2,
    "subwords": 300,
    "max_length": 40,
    "batch_tokens": 256,
    "train_samples": 120,
    "val_samples": 10,
    "test_samples": 12,
    "epochs": 1,
    "dropout": 0.0,
}
# A dozen seconds of one core, and yet it learns most of the grammar.
LEARNS: dict[str, Any] = {
    "model_size": "tiny",
    "subwords": 400,
    "max_length": 60,
    "batch_tokens": 512,
    "lr": 5e-3,
    "schedule": "cosine",
    "warmup": 60,
    "dropout": 0.0,
    "ema_decay": 0.98,
    "epochs": 5,
    "train_samples": 1500,
    "val_samples": 40,
    "test_samples": 60,
}


def settings(**changes: Any) -> Config:
    return Config(**{**SMALLEST, **changes})


def tokenizer() -> BpeTokenizer:
    return BpeTokenizer.train(iter(["a red ball", "two red balls", "ein roter ball", "zwei rote bälle"]), size=280)


def translator(**changes: Any) -> Translator:
    torch.manual_seed(5)
    return Translator(settings(**changes), tokenizer()).eval()


def job(data: Data | None = None, **changes: Any) -> Job:
    config = RECIPES["translation"].load_config()(**{**SMALLEST, **changes})
    return Job(name="phrases", recipe="translation", config=to_plain(config), seed=3, data=data or Data())


def trained_run(factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, trained once for the whole session."""
    sizes = dict.fromkeys(("d_model", "dim_feedforward", "heads", "encoder_layers", "decoder_layers"))
    settings = {**SMALLEST, **LEARNS, **sizes}
    return made_once(factory, "phrases-1", lambda folder: train_in(run_folder(folder, job(**settings))))


def train_in(folder: Path) -> Path:
    """By a rank of its own, as the supervisor would start it."""
    env = {**os.environ, "HEADWAY_RUN_URL": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "headway.recipes.__main__"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder
