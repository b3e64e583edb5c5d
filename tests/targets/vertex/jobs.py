"""Jobs for Vertex AI, and the plans that they become."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.planning import Plan, plan
from headway.spec import Accelerator, Image, Job, Resources, TargetEntry

IMAGE = "us-docker.pkg.dev/my-project/headway/play:v1"
PREBUILT = "us-docker.pkg.dev/vertex-ai/training/pytorch-xla.2-4.py310:latest"


def entry(**options: Any) -> dict[str, TargetEntry]:
    said = {"project": "my-project", "region": "us-east1", **options}
    return {"vertex": TargetEntry(kind="vertex", options=said)}


def job(folder: Path, *, options: Mapping[str, Any] | None = None, **keys: Any) -> Job:
    """A small script's job that nothing stops, unless `keys` or `options` do."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text("print('trained')\n")
    said: dict[str, Any] = {
        "name": "leaves",
        "script": "train.py",
        "outputs": "gs://bucket/runs",
        "resources": Resources(accelerator=Accelerator(kind="T4"), machine="n1-standard-8"),
        "root": str(folder),
        "targets": entry(**{"mode": "package", **(options or {})}),
        **keys,
    }
    return Job(**said)


def planned(folder: Path, **keys: Any) -> Plan:
    return plan(job(folder, **keys), on="vertex")


def request(made: Plan, name: str = "custom-job.json") -> Mapping[str, Any]:
    return next(each.body for each in made.requests if each.name == name)


def ready_image() -> Image:
    return Image(uri=IMAGE)
