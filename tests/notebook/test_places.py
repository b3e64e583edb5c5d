"""How each kind of target is entered: the exact command, for docker and kubernetes as their tools take it."""

from __future__ import annotations

import os
import subprocess
from types import SimpleNamespace

import pytest

from headway.core.errors import BadInput, TargetError
from headway.core.types import ExecCommand, Handle, Target
from headway.dashboard.notebook import jupyter, remote_jupyter
from headway.targets.docker.options import Options as DockerOptions
from headway.targets.docker.resources import DockerResource
from headway.targets.docker.target import DockerTarget
from headway.targets.fake import FakeTarget
from headway.targets.kubernetes.options import Options as KubernetesOptions
from headway.targets.kubernetes.status import Pod
from headway.targets.kubernetes.target import KubernetesTarget
from headway.targets.ssh.options import Options as SshOptions
from headway.targets.ssh.target import SshTarget
from tests.targets.kubernetes.answering import Answering

URL = "/data/runs/night"


def enter(target: Target, url: str = URL) -> ExecCommand:
    """Return the command that enters a run on this target."""
    handle = Handle(target="t", run="night", url=url, details={"dir": "/home/me/.headway"})
    return jupyter.exec_command(SimpleNamespace(target=target, target_handle=handle, run="night"))  # type: ignore[arg-type]


def test_a_container_is_entered_by_exec(monkeypatch: pytest.MonkeyPatch) -> None:
    things = [DockerResource(kind="container", id="1", name="headway-night-0", run="night", url=URL, state="running")]
    monkeypatch.setattr("headway.targets.docker.resources.containers", lambda engine, command, url: things)
    target = DockerTarget(DockerOptions(command="podman"))
    found = enter(target)
    assert found.call("-c", "code") == [
        *("podman", "exec", "--interactive", "headway-night-0", "python3", "-c", "code"),
    ]
    assert not found.here, "its ports are its own"
    things.clear()
    with pytest.raises(TargetError, match="no container of night is running"):
        enter(target)


def test_a_pod_is_entered_by_kubectl(monkeypatch: pytest.MonkeyPatch) -> None:
    pods = [
        Pod(name=f"night-{n}", phase=phase, problem="", exit="", terminating=False, restarts=0, node="")
        for n, phase in enumerate(("Pending", "Running"))
    ]
    monkeypatch.setattr("headway.targets.kubernetes.status.workers", lambda api, options, run, url: pods)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    target = KubernetesTarget(KubernetesOptions(context="there", namespace="team"), api=Answering())
    found = enter(target, "gs://bucket/night")
    assert found.call("-c", "code") == [
        *("kubectl", "--context", "there", "--namespace", "team"),
        *("exec", "--stdin", "--quiet", "night-1", "--", "python3", "-c", "code"),
    ]
    assert jupyter.run_dir_on_target(found) == "", "a bucket is no folder"
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(BadInput, match="kubectl is not installed"):
        enter(target)


def test_words_for_a_shell_are_quoted_for_it() -> None:
    found = enter(SshTarget(SshOptions(host="me@box", engine="docker", python="/opt/my py/python")))
    *_, host, command = found.call("-c", "print('a b')")
    assert host == "box"
    assert command == (
        "exec docker exec --interactive headway-night-0 '/opt/my py/python' -c 'print('\"'\"'a b'\"'\"')'"
    )
    assert found.url.startswith("/home/me/.headway/runs/"), "its folder there, not here"


def test_a_target_without_visitors_is_said() -> None:
    with pytest.raises(BadInput, match="night is on t, a target that has no notebooks") as refused:
        enter(FakeTarget())
    assert "headway pull night" in refused.value.problem.fix


def test_keys_that_were_brought_for_a_run_are_found_in_its_ranks_and_nothing_else_is_taken() -> None:
    given = {"HEADWAY_RUN_URL": "s3://bucket/night", "HEADWAY_BROUGHT": "KEY,GONE", "KEY": "a=b", "RANK": "0"}
    with subprocess.Popen(["sleep", "600"], env={**os.environ, **given}) as rank:
        try:
            assert remote_jupyter.injected_variables("s3://bucket/night") == {"KEY": "a=b"}
            assert remote_jupyter.injected_variables("s3://bucket/other") == {}
        finally:
            rank.kill()
