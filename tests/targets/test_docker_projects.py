"""A project's own Dockerfile, and a project that is installed, in real containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core.types import State
from headway.launcher import lifecycle
from headway.packaging.dockerfile import image_of_plan
from headway.planning import plan
from headway.spec import Image, Job
from tests.packaging.installable import FILES
from tests.testbed.docker import BASE, docker, docker_host

__all__ = ["docker_host"]
pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _daemon(docker_host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


def job(tmp_path: Path, image: Image, **files: str) -> Job:
    for name, text in files.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    root = str(tmp_path / "project")
    return Job(name="own-files", script="train.py", outputs=str(tmp_path / "runs"), root=root, image=image)


def printed(made: Job) -> list[str]:
    run = lifecycle.launch(plan(made, on="docker"))
    assert run.outcome().status.state is State.FINISHED, list(run.logs())
    return [line.text for line in run.logs(rank=0)]


def test_the_projects_own_dockerfile_is_built_once_per_content_and_runs_the_project(tmp_path: Path) -> None:
    dockerfile = f'FROM {BASE}\nWORKDIR /opt/own\nCOPY greeting.txt .\nENTRYPOINT ["false"]\n'
    script = "print(open('/opt/own/greeting.txt').read(), open('local.txt').read())"
    files = {"train.py": script, "greeting.txt": "hello", "local.txt": "there", "training/Dockerfile": dockerfile}
    made = job(tmp_path, Image(dockerfile="training/Dockerfile"), **files)
    name = image_of_plan(plan(made, on="docker")).name
    try:
        assert "hello there" in printed(made)
        first = docker("image", "inspect", "--format", "{{.Id}}", name)
        assert "hello there" in printed(made)
        assert docker("image", "inspect", "--format", "{{.Id}}", name) == first
        changed = dockerfile.replace("COPY greeting.txt .", "RUN echo changed > greeting.txt")
        (tmp_path / "project" / "training" / "Dockerfile").write_text(changed)
        assert "changed" in printed(made)
    finally:
        docker("rmi", "--force", *docker("images", "--quiet", "headway/own-files").split())


def test_a_project_with_a_build_system_is_installed_into_the_generated_image(tmp_path: Path) -> None:
    files = {"train.py": "import greeting; print(greeting.WORDS, greeting.__file__)", **FILES}
    try:
        (line,) = [text for text in printed(job(tmp_path, Image(base=BASE), **files)) if text.startswith("hello")]
        assert "/opt/headway/" in line  # the environment of the image, not the folder of the code
    finally:
        docker("rmi", "--force", *docker("images", "--quiet", "headway/own-files").split())
