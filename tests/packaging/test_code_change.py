"""A change of code reaches a target without an image build, as long as what is installed stays the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.packaging.dockerfile import image_of_plan
from headway.packaging.image_reuse import record_push
from headway.planning import Plan, plan
from headway.spec import Job
from headway.targets.kubernetes import pod

REPOSITORY = "us-docker.pkg.dev/project/repo/job"
DIGEST = f"{REPOSITORY}@sha256:{'a' * 64}"


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    Path("train.py").write_text("print(1)\n")
    Path("requirements.txt").write_text("einops==0.8.0\n")


def planned(on: str, image: str = f"{{repository: {REPOSITORY}}}", outputs: str = "gs://bucket/runs") -> Plan:
    Path("headway.yaml").write_text(
        f"name: job\nscript: train.py\nrequirements: requirements.txt\noutputs: {outputs}\nimage: {image}\n"
        "budget: {hours: 1}\ntargets:\n  gke: {kind: kubernetes, namespace: ml, engine: statefulset}\n"
        "  box: {kind: ssh, host: box.internal}\n"
    )
    return plan(Job.load(Path("headway.yaml")), on=on)


def differing_lines(first: Plan, second: Plan) -> list[str]:
    def lines(made: Plan) -> list[str]:
        return [line for request in made.requests for line in json.dumps(request.body, indent=1).splitlines()]

    return [line for line, other in zip(lines(first), lines(second), strict=True) if line != other]


def test_pods_run_a_pushed_image_that_differs_in_code_only() -> None:
    first = planned("gke")
    assert pod.image(first) == image_of_plan(first).name, "nothing was pushed"
    record_push(image_of_plan(first), DIGEST)
    Path("train.py").write_text("print(2)\n")
    changed = planned("gke")
    assert changed.code.sha256 != first.code.sha256
    assert pod.image(changed) == DIGEST
    Path("requirements.txt").write_text("einops==0.8.1\n")
    installed = planned("gke")
    assert pod.image(installed) == image_of_plan(installed).name, "other dependencies need another image"


def test_with_a_ready_image_only_the_codes_hash_changes() -> None:
    first = planned("gke", "{uri: registry.internal/torch:2}")
    Path("train.py").write_text("print(2)\n")
    second = planned("gke", "{uri: registry.internal/torch:2}")
    changed = differing_lines(first, second)
    assert changed
    assert all(first.code.sha256 in line for line in changed)


def test_an_image_of_changed_code_has_the_same_layers_but_the_last() -> None:
    def instructions(made: Plan) -> list[str]:
        return image_of_plan(made).dockerfile().partition("COPY code/")[0].splitlines()

    first = planned("gke")
    Path("train.py").write_text("print(2)\n")
    second = planned("gke")
    assert instructions(first) == instructions(second)


def test_an_ssh_machine_gets_the_code_alone_and_uses_the_same_environment() -> None:
    first = planned("box", "{}", outputs="runs")
    Path("train.py").write_text("print(2)\n")
    second = planned("box", "{}", outputs="runs")
    changed = differing_lines(first, second)
    assert all(first.code.sha256 in line for line in changed)
    Path("requirements.txt").write_text("einops==0.8.1\n")
    third = planned("box", "{}", outputs="runs")
    assert any("/envs/" in line for line in differing_lines(second, third))
