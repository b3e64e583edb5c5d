"""A rehearsal where torch is not installed: in the image, in a real container, and nothing of it stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from headway._version import __version__
from headway.core.types import State
from headway.launcher.lifecycle import launch
from headway.packaging.engine import EngineError
from headway.spec import Image, Secret
from headway.targets.docker import secrets
from headway.targets.docker.target import DockerTarget
from headway.targets.fake import FakeBehaviour
from tests.contract.plays import plan_play, write_project
from tests.testbed.docker import BASE, TORCH_IS_MOUNTED, docker, docker_host

__all__ = ["docker_host"]
pytestmark = [pytest.mark.docker, *TORCH_IS_MOUNTED]
TORCH = {
    "mounts": [{"path": sysconfig.get_path("purelib"), "at": "/mnt/site", "read_only": True}],
    "env": {"PYTHONPATH": "/mnt/site", "OMP_NUM_THREADS": "1"},
}
JOB: dict[str, Any] = {
    "name": "leaves",
    "recipe": "classification",
    "config": {"model_size": "small", "image_size": 32, "epochs": 1},
    "image": {"uri": BASE},
}
REHEARSE = """
import json, sys
sys.modules["torch"] = None  # as where it is not installed: whoever imports it fails
from headway.launcher.rehearse import as_dict, rehearse
from headway.spec import Job
print(json.dumps(as_dict(rehearse(Job.load("headway.yaml"), time_limit_s=240.0))))
"""


def rehearsed(job: dict[str, Any], docker_host: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "headway.yaml").write_text(json.dumps(job))
    (folder / "scratch").mkdir()
    own = {"DOCKER_HOST": docker_host, "HEADWAY_HOME": str(folder / "home"), "TMPDIR": str(folder / "scratch")}
    done = subprocess.run(
        [sys.executable, "-c", REHEARSE], cwd=folder, env={**os.environ, **own}, capture_output=True, text=True
    )
    assert docker("ps", "--all", "--quiet") == "", "no container stays"
    assert list((folder / "scratch").iterdir()) == []
    return done


def test_without_torch_here_a_recipe_is_rehearsed_in_its_image(docker_host: str, tmp_path: Path) -> None:
    done = rehearsed({**JOB, **TORCH}, docker_host, tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    words = {act["name"]: act["words"] for act in found["acts"]}
    assert found["skipped"] == ""
    assert list(words) == ["train", "checkpoint", "restore", "evaluate", "export", "predict"]
    assert "killed, and resumed" in words["restore"]
    assert words["evaluate"] == "scored on a sample"
    assert words["export"] == "a bundle was exported and loaded"
    assert words["predict"] == "predicted one input"
    assert found["examples_per_s"] > 0


def test_a_verb_that_fails_in_a_runs_place_says_why_and_nothing_of_it_stays(
    docker_host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"DOCKER_HOST": docker_host, "HEADWAY_HOME": str(tmp_path / "home"), "MINE": "canary"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    more: dict[str, Any] = {"image": Image(uri=BASE), "secrets": {"TOKEN": Secret(ref="env:MINE")}}
    project, target = write_project(tmp_path / "project"), DockerTarget()
    plan = plan_play(project, FakeBehaviour(lines=("hello",)), on="docker", outputs=str(tmp_path / "runs"), **more)
    hold = launch(plan, name="r1")
    assert hold.outcome().status.state is State.FINISHED
    assert target.verb(plan, "r1", ["--version"], within_s=60.0).strip() == f"headway {__version__}"
    with pytest.raises(EngineError) as refused:
        target.verb(plan, "r1", ["eval", hold.url], within_s=60.0)
    assert "needs Headway's extra [train]" in refused.value.output
    assert docker("ps", "--all", "--quiet") == ""
    assert not secrets.secrets_dir(hold.url).exists()


def test_what_the_image_lacks_is_found_before_it_is_paid_for(docker_host: str, tmp_path: Path) -> None:
    done = rehearsed(JOB, docker_host, tmp_path)
    assert done.returncode != 0
    assert "the rehearsal failed" in done.stderr
    assert "is not installed" in done.stderr
