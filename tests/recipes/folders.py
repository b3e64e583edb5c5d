"""Run folders for tests: a plan as the planner would have left it, ready for a rank to start in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway._version import __version__
from headway.core.plan import Code, Limits, Plan
from headway.plugins import RECIPES
from headway.spec import Data, Job, dump, to_plain

TINY: dict[str, Any] = {
    "image_size": 32,
    "width": 8,
    "embedding_size": 16,
    "hidden_size": 32,
    "heads": 2,
    "epochs": 2,
    "batch_size": 16,
    "captions": 2,
    "train_samples": 64,
    "val_samples": 12,
    "test_samples": 16,
}


def captioning_job(data: Data | None = None, **settings: Any) -> Job:
    config = RECIPES["captioning"].load_config()(**{**TINY, **settings})
    return Job(name="captions", recipe="captioning", config=to_plain(config), seed=3, data=data or Data())


def plan_of(job: Job) -> Plan:
    return Plan(
        headway=__version__,
        job=dump(job),
        target="local",
        kind="local",
        options={},
        code=Code(sha256="", files=0, bytes=0, biggest=(), wheel="", wheel_sha256=""),
        data={},
        nodes=1,
        processes=1,
        limits=Limits(budget_s=None, max_wait_s=None, grace_s=30.0, second="none"),
        environment={},
        price={},
    )


def run_folder(folder: Path, job: Job) -> Path:
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(plan_of(job).to_json())
    return folder
