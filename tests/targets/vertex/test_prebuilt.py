"""Google's images: which is taken, which is refused, and what the plan says of one that is past its end."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from headway.core.errors import BadJob
from headway.planning import plan
from headway.spec import Image
from headway.targets.vertex import package
from headway.targets.vertex.options import Options
from headway.targets.vertex.target import VertexTarget
from tests.targets.vertex.jobs import job, planned, request

HOST = "us-docker.pkg.dev/vertex-ai/training"


@pytest.mark.parametrize(
    ("region", "accelerated", "uri"),
    [
        ("us-east1", True, "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-4.py310:latest"),
        ("europe-west4", True, "europe-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-4.py310:latest"),
        ("australia-southeast1", False, "asia-docker.pkg.dev/vertex-ai/training/pytorch-xla.2-4.py310:latest"),
        ("northamerica-northeast1", False, "us-docker.pkg.dev/vertex-ai/training/pytorch-xla.2-4.py310:latest"),
    ],
)
def test_the_newest_image_comes_from_the_nearest_registry(region: str, accelerated: bool, uri: str) -> None:
    assert package.default_uri(accelerated=accelerated, region=region) == uri


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        (f"{HOST}/pytorch-gpu.1-13.py310:latest", "torch 1.13"),
        (f"{HOST}/pytorch-gpu.2-3.py310:latest", "torch 2.3"),
        (f"{HOST}/pytorch-gpu.1-4:latest", "Python 3.7"),
        (f"{HOST}/tf-gpu.2-11.py39:latest", "Python 3.9"),
        ("us-docker.pkg.dev/my-project/repo/image:v1", "none of them"),
    ],
)
def test_an_image_that_is_too_old_or_not_googles_is_refused(uri: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(BadJob, match=why) as refused:
        plan(job(tmp_path, image=Image(uri=uri)), on="vertex")
    assert "mode: container" in str(refused.value)


@pytest.mark.parametrize("name", ["pytorch-gpu.2-4.py310:latest", "tf-gpu.2-17.py310:latest", "pytorch-gpu.2-9.py312"])
def test_another_of_googles_images_may_be_named(name: str, tmp_path: Path) -> None:
    made = planned(tmp_path, image=Image(uri=f"{HOST}/{name}"))
    (pool,) = request(made)["body"]["jobSpec"]["workerPoolSpecs"]
    assert pool["pythonPackageSpec"]["executorImageUri"] == f"{HOST}/{name}"


def notes_on(day: date, tmp_path: Path, image: Image | None = None) -> str:
    target = VertexTarget(Options(project="my-project", mode="package"), today=lambda: day)
    return "\n".join(target.notes(job(tmp_path, image=image or Image()), 1))


def test_the_plan_says_until_when_an_image_can_be_had_and_warns_once_that_is_over(tmp_path: Path) -> None:
    assert "is available until 2026-07-24" in notes_on(date(2026, 7, 24), tmp_path)
    assert "is past its end (2026-07-24)" in notes_on(date(2026, 7, 25), tmp_path)


def test_an_image_that_the_table_does_not_know_is_left_to_vertex_and_said(tmp_path: Path) -> None:
    said = notes_on(date(2026, 11, 16), tmp_path, Image(uri=f"{HOST}/pytorch-gpu.2-9.py312:latest"))
    assert f"not in the table of {package.AS_OF}" in said
