"""A rehearsal where torch is not installed: in the image, in a real container, and nothing of it stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from tests.testbed.docker import BASE, TORCH_IS_MOUNTED, docker, docker_host

__all__ = ["docker_host"]
pytestmark = TORCH_IS_MOUNTED
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
from headway.planning.rehearse import as_dict, rehearse
from headway.spec import Job
print(json.dumps(as_dict(rehearse(Job.load("headway.yaml"), longest_s=240.0))))
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
    untried = {name for name, said in words.items() if "not tried" in said}
    assert untried == {"evaluate", "export", "predict"}, "what is not tried is said"
    assert found["examples_per_s"] > 0


def test_what_the_image_lacks_is_found_before_it_is_paid_for(docker_host: str, tmp_path: Path) -> None:
    done = rehearsed(JOB, docker_host, tmp_path)
    assert done.returncode != 0
    assert "the rehearsal failed" in done.stderr
    assert "is not installed" in done.stderr
