"""Small grading jobs for tests."""

from __future__ import annotations

from typing import Any

from headway.recipes.grading.config import Config
from headway.spec import Data, Export, Job, to_plain

TINY: dict[str, Any] = {
    "model_size": "small",
    "image_size": 96,
    "front": "resnet18",
    "back": "resnet18",
    "batch_size": 16,
    "phase1_epochs": 1,
    "phase2_epochs": 2,
    "checkpoint_epochs": 2,
    "train_samples": 48,
    "val_samples": 20,
    "test_samples": 24,
}


def grading_config(**settings: Any) -> Config:
    return Config(**{**TINY, **settings})


def grading_job(data: Data | None = None, *, phases: Any = (), **settings: Any) -> Job:
    return Job(
        name="cards",
        recipe="grading",
        config=to_plain(grading_config(**settings)),
        seed=3,
        data=data or Data(),
        phases=phases,
        export=Export(name="psa_dual_branch"),
    )
