"""Whatever a provider says, a receipt is not false: the run is gone, or not said to be. On every target."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.core.errors import HeadwayError
from headway.core.types import Handle, Receipt, State, Target
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.planning import plan
from headway.rundir import submission, teardown
from headway.rundir.index import RunIndex
from headway.rundir.layout import PLAN, RunFolder
from headway.spec import Image, Job
from headway.storage import open_store
from headway.targets.docker.target import DockerTarget
from headway.targets.kubernetes import lifecycle as kubernetes_lifecycle
from headway.targets.kubernetes.options import Options as KubernetesOptions
from headway.targets.kubernetes.target import KubernetesTarget
from headway.targets.slurm.options import Options as SlurmOptions
from headway.targets.slurm.target import SlurmTarget
from headway.targets.vertex.options import Options as VertexOptions
from headway.targets.vertex.target import VertexTarget
from tests.targets.kubernetes.plans import plan_of
from tests.targets.untrue import ELSEWHERE, JOB, KEEPS, LAGS, LIES, MODES, Cluster, Controller, Daemon, Jobs


class Scene:
    """A run on a provider, its process never began."""

    provider: Any
    hold: RunHandle

    def say(self, mode: str) -> None:
        self.provider.mode = mode


class OnDocker(Scene):
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.provider = Daemon()
        job = Job(name="j", script="t.py", root=str(folder), outputs=str(folder / "runs"), image=Image(base="x:1"))
        target = DockerTarget(engine=self.provider)
        monkeypatch.setattr(DockerTarget, "online", lambda self, plan: [])
        self.hold = lifecycle.launch(plan(job, on="docker"), name="r1", detach=True, target=target)


class OnSlurm(Scene):
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.provider = Controller()
        job = Job(name="j", script="t.py", root=str(folder), outputs=str(folder / "runs"))
        target = SlurmTarget(SlurmOptions(), run_command=self.provider)
        monkeypatch.setattr(SlurmTarget, "online", lambda self, plan: [])
        monkeypatch.setattr("headway.targets.slurm.lifecycle.FORCE_S", 0.5)
        monkeypatch.setattr("headway.targets.slurm.lifecycle.END_RECORD_S", 0.0)
        monkeypatch.setattr("headway.targets.slurm.lifecycle.grace_s", lambda handle: 0.5)
        self.hold = lifecycle.launch(plan(job, on="slurm"), name="r1", detach=True, target=target)


class OnKubernetes(Scene):
    """With a real client and kubeconfig: `elsewhere` is another current context, where nothing is."""

    options = KubernetesOptions()

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.provider, self.other = Cluster(), Cluster()
        self._kubeconfig, self._monkeypatch = folder / "kubeconfig", monkeypatch
        monkeypatch.setenv("KUBECONFIG", str(self._kubeconfig))
        monkeypatch.setattr(kubernetes_lifecycle, "GC_WAIT_S", 0.5)
        self.say("")
        made = plan_of(self.options, outputs=str(folder / "runs"))
        run_folder = RunFolder(open_store(str(folder / "runs/r1")))
        run_folder.store.write(PLAN, made.to_json().encode())
        submission.record_submission(run_folder, made)
        target: Target = KubernetesTarget(self.options)
        handle = target.submit(made, "r1")
        submission.save_handle_details(run_folder, handle)
        handle = lifecycle.open_run(run_folder.url, target=target).target_handle
        self.hold = RunHandle(run="r1", url=run_folder.url, target_handle=handle, target=target, run_index=RunIndex())

    def say(self, mode: str) -> None:
        named = (
            {"theirs": self.other.url} if mode == ELSEWHERE else {"ours": self.provider.url, "theirs": self.other.url}
        )
        self._kubeconfig.write_text(yaml.safe_dump({
            "current-context": next(iter(named)),
            "contexts": [{"name": name, "context": {"cluster": name, "user": "u"}} for name in named],
            "clusters": [{"name": name, "cluster": {"server": url}} for name, url in named.items()],
            "users": [{"name": "u", "user": {"token": "t"}}]}))  # fmt: skip
        self.provider.mode = "" if mode == ELSEWHERE else mode

    def use_context(self, name: str) -> None:
        known = yaml.safe_load(self._kubeconfig.read_text())
        self._kubeconfig.write_text(yaml.safe_dump({**known, "current-context": name}))


class OnVertex(Scene):
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made = plan_of(KubernetesOptions(), outputs=str(folder / "runs"))
        run_folder = RunFolder(open_store(str(folder / "runs/r1")))
        run_folder.store.write(PLAN, made.to_json().encode())
        submission.record_submission(run_folder, made)
        self.provider = Jobs(run_folder.url)
        target = VertexTarget(VertexOptions(project="p", region="us-east1"), _clients=[self.provider])
        monkeypatch.setattr("headway.targets.vertex.lifecycle.FORCE_S", 0.5)
        handle = Handle(target="vertex", run="r1", url=run_folder.url, details={"job": JOB})
        self.hold = RunHandle(run="r1", url=run_folder.url, target_handle=handle, target=target, run_index=RunIndex())


class OnPyTorchJob(OnKubernetes):
    options = KubernetesOptions(engine="pytorchjob", keep=3600.0)


SCENES = {"vertex": OnVertex, "docker": OnDocker, "slurm": OnSlurm, "kubernetes": OnKubernetes}
KEPT = {"pytorchjob": OnPyTorchJob}


@pytest.fixture
def scene_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project/t.py").write_text("")
    (tmp_path / "project/requirements.txt").write_text("")
    made: list[Any] = []

    def begin(name: str) -> Any:
        made.append((SCENES | KEPT)[name](tmp_path / "project", monkeypatch))
        slept = time.sleep
        monkeypatch.setattr("time.sleep", lambda seconds: slept(min(seconds, 0.02)))
        return made[-1]

    yield begin
    for each in made:
        if isinstance(each, OnKubernetes):
            each.provider.close()
            each.other.close()


def taken_down(hold: RunHandle) -> Receipt | None:
    try:
        return hold.down()
    except HeadwayError:
        return None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SCENES)
def test_no_answer_of_a_provider_makes_a_receipt_false(scene_on: Callable[[str], Any], name: str, mode: str) -> None:
    scene = scene_on(name)
    hold: RunHandle = scene.hold
    assert scene.provider.alive()
    assert not hold.current_status().state.ended

    scene.say(mode)
    status = hold.current_status()
    if mode not in (LAGS, LIES, KEEPS):
        assert status.state is State.UNKNOWN, "it waits is no answer, and lost is a false one"
        assert status.reason
    receipt = taken_down(hold)
    if scene.provider.alive():
        assert receipt is None or receipt.left or receipt.unverified
        assert receipt is None or not receipt.left or teardown.complete_receipt(hold.folder) is None
    if mode == LAGS:
        assert receipt is not None
        assert not scene.provider.alive(), "delete is called for everything on record, whatever a list shows"

    scene.say("")
    receipt = hold.down()
    assert (receipt.left, receipt.unverified, scene.provider.alive()) == ((), (), False)
    assert receipt.created
    assert hold.current_status().state is State.STOPPED, "taken down before it began is not lost"


def test_a_run_is_looked_for_in_its_own_cluster_whatever_the_current_context_is(
    scene_on: Callable[[str], Any],
) -> None:
    scene = scene_on("kubernetes")
    scene.use_context("theirs")
    assert scene.hold.current_status().state is State.PENDING
    receipt = scene.hold.down()
    assert receipt.left == ()
    assert not scene.provider.alive()


def test_an_object_of_another_run_with_the_name_of_a_recorded_one_is_left_alone(
    scene_on: Callable[[str], Any],
) -> None:
    scene = scene_on("kubernetes")
    for path, item in list(scene.provider.objects.items()):
        metadata = {"name": item["metadata"]["name"], "uid": "another", "labels": {}}
        scene.provider.objects[path] = {**item, "metadata": metadata}
    assert scene.hold.down().left == ()
    assert scene.provider.alive()


def test_a_receipt_of_an_earlier_start_is_none_of_a_later_one(scene_on: Callable[[str], Any]) -> None:
    """Neither began an attempt, so both have the number 0."""
    scene = scene_on("slurm")
    scene.hold.down()
    again = lifecycle.resume(scene.hold.url, target=scene.hold.target)
    assert teardown.complete_receipt(again.folder) is None
    assert again.current_status().state is State.PENDING
    again.down()
    assert not scene.provider.alive()


def test_verbs_that_only_read_remove_nothing_before_keep_has_passed(scene_on: Callable[[str], Any]) -> None:
    scene = scene_on("pytorchjob")
    hold: RunHandle = scene.hold
    ended = {"kind": "ended", "state": "finished", "attempt": 1, "time": submission.utc_now(), "exit_code": 0}
    hold.folder.store.write("events/a0001-0000001.jsonl", json.dumps(ended).encode() + b"\n")
    before = dict(scene.provider.objects)
    outcome = hold.outcome()
    assert (outcome.status.state, outcome.receipt) == (State.FINISHED, None)
    assert scene.provider.objects == before
    hold.folder.store.write(
        "events/a0001-0000001.jsonl", json.dumps({**ended, "time": "2026-01-01T00:00:00Z"}).encode()
    )
    receipt = hold.outcome().receipt
    assert receipt is not None
    assert (receipt.left, scene.provider.alive()) == ((), False)
