"""What would stop a job in containers is found before anything is made, each with what to type. Needs no daemon."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway import cli
from headway.core.errors import Problem
from headway.packaging import engine
from headway.packaging.engine import COMMAND_TIMEOUT_S, AlreadyExists, EngineError, NotFound, Unreachable, engine_error
from headway.spec import Accelerator, Image, Job, Mount, Resources, Secret
from headway.targets.docker import checks
from headway.targets.docker.options import Options
from headway.targets.docker.target import DockerTarget
from tests.testbed.docker import docker_host

__all__ = ["docker_host"]
has_docker = pytest.mark.skipif(shutil.which("docker") is None, reason="docker: the command is not installed")


def answering(**info: Any) -> engine.Engine:
    """A daemon that says of itself what a test wants. It answers one question, and no other."""

    def answer(argv: Sequence[str], *, within_s: float | None = COMMAND_TIMEOUT_S) -> str:
        assert argv[1] == "info"
        return json.dumps(info)

    return answer


def job(tmp_path: Path, **changes: Any) -> Job:
    (tmp_path / "t.py").write_text("")
    return Job(**{"name": "j", "script": "t.py", "outputs": str(tmp_path / "runs"), "root": str(tmp_path), **changes})


def problems(job: Job, *, info: Mapping[str, Any] | None = None, **options: Any) -> list[Problem]:
    chosen = Options(**options)
    return [*DockerTarget(chosen).check(job), *checks.daemon_problems(job, chosen, answering(**(info or {})))]


def daemon_problems(job: Job, options: Options | None = None) -> list[Problem]:
    return list(checks.daemon_problems(job, options or Options(), engine.run))


def test_a_job_that_can_run_has_no_problems(tmp_path: Path) -> None:
    assert problems(job(tmp_path)) == []


def test_docker_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (problem,) = daemon_problems(job(tmp_path))
    assert (problem.what, problem.fix) == ("docker is not installed", "sudo apt-get install docker.io")
    (problem,) = daemon_problems(job(tmp_path), Options(command="podman"))
    assert problem.fix == "sudo apt-get install podman"
    (problem,) = daemon_problems(job(tmp_path), Options(command="/opt/dokcer"))
    assert "command" in problem.fix


@has_docker
def test_a_daemon_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    (problem,) = daemon_problems(job(tmp_path))
    assert f"{tmp_path}/nothing.sock" in problem.what
    assert problem.fix == "sudo systemctl start docker"


def test_a_client_that_reports_a_dead_daemon_and_exits_with_0(tmp_path: Path) -> None:
    said = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
    (problem,) = problems(job(tmp_path), info={"ServerErrors": [said]})
    assert "/var/run/docker.sock" in problem.what
    assert problem.fix == "sudo systemctl start docker"


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="docker: needs root and setpriv")
def test_a_socket_that_is_not_for_this_user(docker_host: str) -> None:
    """As another user, against a real daemon: what the real client then says is understood."""
    words = ["docker", "--host", docker_host, "info", "--format", "{{json .}}"]
    done = subprocess.run(
        ["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups", *words],
        capture_output=True, text=True, env={**os.environ, "HOME": "/nonexistent"},
    )  # fmt: skip
    errors = json.loads(done.stdout or "{}").get("ServerErrors") or [done.stderr]
    found = engine_error(words, "\n".join(errors))
    assert isinstance(found, Unreachable)
    assert "usermod -aG docker" in found.problem.fix


def test_a_daemon_on_another_machine_has_none_of_our_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://gpu-box")
    (problem,) = problems(job(tmp_path))
    assert "ssh://gpu-box" in problem.what
    assert "ssh target" in problem.fix


def test_a_rootless_daemon_is_told_from_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    rootless = {"SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]}
    (problem,) = problems(job(tmp_path), info=rootless)
    assert "user: root" in problem.fix
    assert problems(job(tmp_path), info=rootless, user="root") == []


def test_a_gpu_that_containers_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wants = job(tmp_path, resources=Resources(accelerator=Accelerator(kind="T4")))
    assert problems(wants) == [], "without a GPU it trains on the CPU, and the plan says so"
    monkeypatch.setattr(checks, "NVIDIA", tmp_path)
    monkeypatch.setattr(checks, "which", lambda name: None)
    (problem,) = problems(wants, info={"Runtimes": {"runc": {}}})
    assert "nvidia-container-toolkit" in problem.fix
    assert problems(wants, info={"Runtimes": {"nvidia": {}, "runc": {}}}) == []


def test_all_that_is_wrong_with_a_job_comes_at_once(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("-e .\n")
    bad = job(
        tmp_path,
        image=Image(repository="us-docker.pkg.dev/my-project/my-repo"),
        requirements="requirements.txt",
        mounts=(Mount(pvc="claim", at="/data"), Mount(path="/no/such/folder", at="/more")),
        secrets={"TOKEN": Secret(ref="k8s://wandb/key")},
        resources=Resources(nodes=2),
    )
    said = list(map(str, problems(bad, network="host")))
    parts = ("lacks its NAME", "requirements.txt:1", "claim", "/no/such/folder", "k8s://wandb/key", "private network")
    assert [part for part in parts if not any(part in text for text in said)] == []
    assert len(said) == len(parts)
    assert problems(replace(bad, image=Image(), requirements=None, mounts=(), secrets={})) == []


def test_what_does_not_stop_a_job_is_noted(tmp_path: Path) -> None:
    resources = Resources(nodes=9, spot=True, accelerator=Accelerator(kind="T4"))
    key = Secret(ref="file:key.json", as_="file")
    noted = job(tmp_path, resources=resources, secrets={"GOOGLE_APPLICATION_CREDENTIALS": key})
    notes = DockerTarget().notes(noted, 1000)
    parts = ("cores", "on the CPU", "resources.spot", "a key file works")
    assert [part in text for part, text in zip(parts, notes, strict=True)] == [True] * 4


@pytest.mark.parametrize(
    ("said", "kind", "fix"),
    [
        ("Error response from daemon: No such container: x", NotFound, ""),
        ("Error: no container with name or ID \"x\" found: no such container", NotFound, ""),
        ("Error response from daemon: network x not found", NotFound, ""),
        ('Conflict. The container name "/x" is already in use by container "y"', AlreadyExists, "headway ps"),
        ("write /var/lib/docker/x: no space left on device", EngineError, "docker system prune"),
        ('could not select device driver "" with capabilities: [[gpu]].', EngineError, "nvidia-container-toolkit"),
        ("pull access denied for x, repository does not exist", EngineError, "image.base"),
        ("unauthorized: You don't have the needed permissions", EngineError, "gcloud auth configure-docker"),
        (
            "could not find an available, non-overlapping IPv4 address pool among the defaults",
            EngineError,
            "network prune",
        ),
        ('exec: "python3": executable file not found in $PATH: unknown', EngineError, "python: …"),
    ],
)  # fmt: skip
def test_what_a_daemon_says_becomes_what_to_type(said: str, kind: type[EngineError], fix: str) -> None:
    found = engine_error(["docker", "create", "x"], said)
    assert type(found) is kind
    assert fix in found.problem.fix
    assert found.output == said


def test_what_nobody_foresaw_is_passed_on_in_its_own_words() -> None:
    found = engine_error(
        ["docker", "create", "--name", "x"], "\x1b[31mError response from daemon: the moon is full\x1b[0m\n"
    )
    assert "`docker create x` failed: the moon is full" in str(found)


def test_a_daemon_that_hangs_is_given_up(tmp_path: Path) -> None:
    slow = tmp_path / "docker"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    with pytest.raises(Unreachable, match="did not finish within"):
        engine.run([str(slow), "info"], within_s=0.2)


@pytest.mark.parametrize("command", ["docker", "podman"])
def test_a_plan_and_its_requests_need_no_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (tmp_path / "t.py").write_text("")
    entry = f"targets: {{box: {{kind: docker, command: {command}}}}}"
    (tmp_path / "headway.yaml").write_text(f"name: j\nscript: t.py\n{entry}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["plan", "--on", "box", "--render", "out"]) == 0
    assert (tmp_path / "out" / "Dockerfile").is_file()
    assert json.loads((tmp_path / "out" / "node-0.json").read_text())["argv"][0] == command
    assert cli.main(["run", "--on", "box"]) == 2
    assert f"{command} is not installed" in capsys.readouterr().err
    assert not list((tmp_path / "runs").glob("j-*"))


def test_the_doctor_says_whether_the_daemon_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = DockerTarget(engine=answering()).doctor(job(tmp_path))
    assert (found.mark, found.what) == ("ok", "the daemon of docker answers")
    monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = DockerTarget().doctor(job(tmp_path))
    assert (found.mark, found.fix) == ("bad", "sudo apt-get install docker.io")
