"""`headway image` for real: what is built, what stays out of it, what a registry is given, and who may use it."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import headway
from headway.cli import main
from headway.planning import plan
from headway.spec import Job
from tests.testbed.docker import BASE, SOCKET, docker, docker_host
from tests.testbed.registry import registry

__all__ = ["docker_host", "registry"]
pytestmark = [pytest.mark.docker, pytest.mark.slow]
JOB = f"""\
name: small
script: train.py
image: {{base: {BASE}}}
requirements: requirements.txt
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job, and much that must not be in its image."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    files = {
        "headway.yaml": JOB,
        "requirements.txt": "-c deps/held.txt\n",
        "deps/held.txt": "pyyaml<7\n",
        "train.py": "from pkg import data; print(data.NAME)",
        "pkg/data/__init__.py": "NAME = 'small'",
        "weights/best.pt": "weights",
        "pkg/data/train.parquet": "data",
        "asset.npy": "kept on purpose",
        ".env": "TOKEN=hunter2",
        "server.pem": "hunter2",
        ".dockerignore": "notes.md\n!asset.npy\n",
        "notes.md": "mine",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def built(project: Path, docker_host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    assert main(["image", "--build", "--json"]) == 0
    return str(json.loads(capsys.readouterr().out)["uri"])


def test_the_dockerfile_is_printed_without_a_daemon(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["image"]) == 0
    printed = capsys.readouterr().out
    assert f"FROM --platform=linux/amd64 {BASE} AS base" in printed
    assert main(["image", "--set", "image.base=python:3.13-slim"]) == 0
    assert "python:3.13-slim" in capsys.readouterr().out


@pytest.mark.ci
def test_only_code_is_in_the_image(built: str) -> None:
    listed = docker("run", "--rm", "--entrypoint", "find", built, "/headway/code", "-type", "f").split()
    inside = sorted(path.removeprefix("/headway/code/") for path in listed)
    wanted = [".dockerignore", "asset.npy", "deps/held.txt", "headway.yaml"]
    assert inside == [*wanted, "pkg/data/__init__.py", "requirements.txt", "train.py"]
    assert "hunter2" not in docker("history", "--no-trunc", built)


def test_it_is_labelled_not_root_and_runs_headway(built: str) -> None:
    (found,) = json.loads(docker("image", "inspect", built))
    assert found["Config"]["Labels"]["headway.job"] == "small"
    assert found["Config"]["User"] == "1000:1000"
    assert (found["Os"], found["Architecture"]) == ("linux", "amd64")
    for user in ("1000:1000", "4321:4321"):
        run = ("run", "--rm", "--user", user, "--entrypoint", "sh", built, "-c")
        said = docker(*run, "python3 -c 'import headway; print(headway.__version__)' && touch mine && id -u")
        assert said.split() == [headway.__version__, user.split(":")[0]]


def test_what_is_there_is_not_built_again_and_other_code_is_one_layer(
    built: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = json.loads(docker("image", "inspect", built))[0]["RootFS"]["Layers"]
    assert main(["image", "--build", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["uri"] == built
    (project / "train.py").write_text("print('another')")
    assert main(["image", "--build", "--json"]) == 0
    other = json.loads(capsys.readouterr().out)["uri"]
    assert other != built
    others = json.loads(docker("image", "inspect", other))[0]["RootFS"]["Layers"]
    assert len(others) == len(layers)
    assert sum(one != two for one, two in zip(layers, others, strict=True)) == 1


def test_after_a_push_plans_name_the_digest(
    project: Path,
    docker_host: str,
    registry: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    (project / "headway.yaml").write_text(JOB.replace("{base", f"{{repository: {registry}/team/small, base"))
    assert main(["image", "--push"]) == 0
    uri = capsys.readouterr().out.splitlines()[0]
    assert re.fullmatch(rf"{re.escape(registry)}/team/small@sha256:[0-9a-f]{{64}}", uri)
    made = plan(Job.load("headway.yaml"), on="docker")
    (request,) = [each for each in made.requests if each.name == "node-0.json"]
    assert uri in request.body["argv"]
    docker("rmi", "--force", "--no-prune", *docker("images", "--quiet", f"{registry}/team/small").split())
    docker("pull", uri)  # anybody who has the digest finds it


def test_a_push_to_nowhere_says_what_to_write(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["image", "--push"]) == 2
    assert "LOCATION-docker.pkg.dev/PROJECT/REPO/NAME" in capsys.readouterr().err


def test_a_build_that_fails_shows_its_last_words(
    project: Path, docker_host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    assert main(["image", "--build", "--set", "setup=[echo the disk is on fire && false]"]) == 1
    said = capsys.readouterr().err
    assert "the disk is on fire" in said


def test_a_shell_in_it_is_the_users(built: str, project: Path) -> None:
    words = [sys.executable, "-m", "headway", "image", "--shell"]
    done = subprocess.run(words, input="pwd; id -u; exit 3\n", capture_output=True, text=True)
    assert (done.stdout.split(), done.returncode) == (["/headway/code", str(os.getuid())], 3), done.stderr


def test_the_folder_can_be_built_elsewhere(built: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["image", "--out", "context"]) == 0
    command = capsys.readouterr().out.split("next: docker ")[1].split()
    docker("rmi", "--no-prune", built)
    docker(*command)
    assert docker("images", "--quiet", built)
    assert main(["image", "--out", "context"]) == 2
    shutil.rmtree("context")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--set", "image={uri: ghcr.io/a/b}"], "remove image.uri"),
        (["--set", "image.repository=us-docker.pkg.dev/my-project"], "lacks its REPO"),
        (["--on", "local"], "of kind docker"),
        (["--on", "dokcer"], "did you mean 'docker'?"),
    ],
)
def test_bad_input_is_said_with_what_to_write(
    project: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert main(["image", *more]) == 2
    assert said in capsys.readouterr().err


@pytest.fixture
def somebody() -> Iterator[tuple[list[str], Path]]:
    """Another user with the right to use the socket, and a folder of theirs."""
    if os.getuid() or shutil.which("setpriv") is None or sys.version_info[:2] != (3, 11):
        pytest.skip("docker: needs root, setpriv and a Python 3.11 that others may run")
    probe = [
        "setpriv",
        "--reuid=1234",
        "--regid=1234",
        "--clear-groups",
        "/usr/bin/python3",
        "-c",
        "import headway, yaml",
    ]
    paths = f"{Path(headway.__file__).parents[1]}:{sysconfig.get_path('purelib')}"
    if subprocess.run(probe, env={"PYTHONPATH": paths}, capture_output=True).returncode:
        pytest.skip("docker: another user cannot read this copy of Headway")
    with tempfile.TemporaryDirectory(prefix="headway-somebody-") as name:
        os.chown(name, 1234, 1234)
        env = {"PYTHONPATH": paths, "HOME": name, "PATH": os.environ["PATH"], "DOCKER_HOST": f"unix://{SOCKET}"}
        given = [f"{key}={value}" for key, value in env.items()]
        group = f"--groups={SOCKET.stat().st_gid}"
        yield ["setpriv", "--reuid=1234", "--regid=1234", group, "env", "-i", *given, "/usr/bin/python3"], Path(name)


def test_what_a_container_writes_belongs_to_who_launched_it(docker_host: str, somebody: tuple[list[str], Path]) -> None:
    python, home = somebody
    (home / "headway.yaml").write_text(JOB + "secrets: {TOKEN: env:HOME}\n")
    (home / "requirements.txt").write_text("")
    (home / "train.py").write_text(
        "import os, getpass; open(os.environ['HEADWAY_RUN_DIR'] + '/mine', 'w'); open('beside', 'w'); getpass.getuser()"
    )
    for path in home.iterdir():
        os.chown(path, 1234, 1234)
    done = subprocess.run(
        [*python, "-m", "headway", "run", "--on", "docker", "--name", "theirs"],
        cwd=home,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = home / "runs" / "theirs"
    assert (run / "files" / "mine").exists()
    owners = {(path.lstat().st_uid, path.lstat().st_gid) for path in run.rglob("*")}
    assert owners == {(1234, 1234)}
    assert not any(path.lstat().st_mode & stat.S_ISUID for path in run.rglob("*"))
