"""What a client asks of a cluster when it starts a run again. The run folder is real; the cluster says yes to all."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import BadInput
from headway.packaging import build, engine
from headway.rundir import lease
from headway.rundir.layout import RunFolder
from headway.spec import Budget, Image, Mount
from headway.storage import open_store
from headway.targets.kubernetes import lifecycle, manifests
from headway.targets.kubernetes.client import ApiError, Client, NotFound, Object
from headway.targets.kubernetes.options import Options
from headway.targets.kubernetes.target import KubernetesTarget
from tests.targets.kubernetes.admission import Admitting
from tests.targets.kubernetes.plans import plan_of


class Yes(Client):
    """Nothing is there, and everything can be made."""

    def __init__(self) -> None:
        self.made: list[Object] = []
        self._numbers = count()

    def __call__(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Object | None = None
    ) -> Object:
        if method == "POST" and body is not None:
            self.made.append(body)
            return {**body, "metadata": {**body["metadata"], "uid": f"uid-{next(self._numbers)}"}}
        if method == "GET" and query is None:
            raise NotFound(f"{path} is not there")
        return {"items": []}


def deadline_s(folder: RunFolder, options: Options) -> float:
    api = Yes()
    plan = plan_of(options, budget=Budget(hours=1), max_wait=0.0, outputs=folder.url.rpartition("/")[0])
    lifecycle.submit(api, options, plan, folder.name, folder)
    (found,) = [found for body in api.made for found in _deadlines(body)]
    return found


def _deadlines(body: Object) -> list[float]:
    """A fuse has one of its own, of minutes."""
    shown = body["spec"] if body["kind"] == "Job" else body.get("spec", {}).get("runPolicy", {})
    seconds = float(shown.get("activeDeadlineSeconds", 0.0))
    return [seconds] if seconds > 400.0 else []


@pytest.mark.parametrize("engine", ["statefulset", "pytorchjob"])
@pytest.mark.parametrize("freed", [False, True])
def test_the_deadline_in_the_cluster_is_what_a_lost_pod_has_left_of_the_budget(
    tmp_path: Path, engine: str, freed: bool
) -> None:
    """Its lease has the beats of 3,000 s. It said nothing after its first event."""
    options, folder = Options(engine=engine), RunFolder(open_store(str(tmp_path / "runs" / "r1")))  # type: ignore[arg-type]
    first = deadline_s(folder, options)
    begun = {"kind": "attempt", "number": 1, "spent_s": 0.1, "held_from_s": 0.0}
    folder.store.write("events/a0001-0000001.jsonl", json.dumps(begun).encode() + b"\n")
    lost = {"attempt": 1, "holder": "r1-0", "host": "r1-0", "boot": "the node's", "pid": 1, "started": "1", "beat": 300}
    folder.write_json(lease.KEY, lost)
    if freed:
        assert lease.release_dead_holder(folder.store, lambda record: True)
    assert first - deadline_s(folder, options) == 3000.0


@pytest.mark.parametrize("engine", ["statefulset", "pytorchjob"])
def test_the_cluster_is_asked_about_every_object_and_nothing_is_created(engine: Any) -> None:
    api, options = Admitting(), Options(engine=engine)
    plan = plan_of(options)
    assert KubernetesTarget(options, api=api).online(plan) == []
    assert len(api.requests) == len(manifests.requests(plan, options)) - 1, "all but the patch that starts the run"
    assert {(method, query["dryRun"]) for method, _, query in api.requests} == {("POST", "All")}


def test_an_object_that_the_cluster_would_refuse_is_a_problem_before_anything_is_created() -> None:
    options, mounts = Options(), (Mount(pvc="a", at="/data"), Mount(pvc="b", at="/data"))
    *_, problem = KubernetesTarget(options, api=Admitting()).online(plan_of(options, mounts=mounts))
    assert "the cluster refuses statefulset.json" in problem.what
    assert "two volumes are mounted at /data" in problem.what


def test_one_refusal_of_all_objects_is_one_problem_and_a_webhook_without_dry_runs_is_none() -> None:
    options = Options()
    missing = NotFound('namespaces "ml" not found', code=404, fix="kubectl create namespace ml")
    (problem,) = KubernetesTarget(options, api=Admitting(refuses=missing)).online(plan_of(options))
    assert problem.fix == "kubectl create namespace ml"
    silent = ApiError("refused", code=400, message='admission webhook "x" does not support dry run')
    assert KubernetesTarget(options, api=Admitting(refuses=silent)).online(plan_of(options)) == []


@pytest.mark.parametrize(("engine", "length"), [("statefulset", 53), ("pytorchjob", 64)])
def test_a_name_from_which_no_pods_could_be_made_is_refused(tmp_path: Path, engine: Any, length: int) -> None:
    options, run = Options(engine=engine), "n" * length
    folder = RunFolder(open_store(str(tmp_path / "runs" / run)))
    with pytest.raises(BadInput, match=f"at most {length - 1} characters"):
        lifecycle.submit(Admitting(), options, plan_of(options), run, folder)


REPOSITORY = "us-docker.pkg.dev/project/repo/captions"
DIGEST = f"{REPOSITORY}@sha256:{'a' * 64}"


class Daemon:
    """A container engine that has nothing yet and can push; `command` is the one that responds."""

    def __init__(self, command: str | None) -> None:
        self.command = command
        self.pushed: list[str] = []

    def __call__(self, argv: Sequence[str], *, within_s: float | None = None) -> str:
        if argv[0] != self.command:
            raise engine.not_installed(argv[0])
        match list(argv[1:]):
            case ["image", "inspect", "--format", *_]:
                raise engine.NotFound("that image does not exist")
            case ["image", "inspect", _]:
                return json.dumps([{"RepoDigests": [DIGEST]}])
            case ["push", name]:
                self.pushed.append(name)
        return ""


def images_of(api: Yes) -> set[str]:
    text = json.dumps(api.made)
    return {name for name in re.findall(r'"image": "([^"]+)"', text) if name.startswith(REPOSITORY)}


@pytest.mark.parametrize("command", ["docker", "podman"])
def test_a_run_builds_and_pushes_its_image_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    plan = plan_of(Options(), image=Image(repository=REPOSITORY), outputs=str(tmp_path))
    monkeypatch.setattr(build, "context", lambda *_: nullcontext(tmp_path))  # the plan's code is made up
    daemon = Daemon(command)
    for run in ("r-1", "r-2"):
        api, folder = Yes(), RunFolder(open_store(f"{tmp_path}/{run}"))
        details = lifecycle.submit(api, Options(), plan, run, folder, engine=daemon)
        assert images_of(api) == {DIGEST}
        assert "note" not in details
    (name,) = daemon.pushed
    assert name.startswith(f"{REPOSITORY}:")


def test_without_a_container_engine_the_image_that_must_be_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    plan = plan_of(Options(), image=Image(repository=REPOSITORY), outputs=str(tmp_path))
    api = Yes()
    folder = RunFolder(open_store(f"{tmp_path}/r-1"))
    details = lifecycle.submit(api, Options(), plan, "r-1", folder, engine=Daemon(None))
    (name,) = images_of(api)
    assert details["note"] == f"no docker or podman responds here: {name} must be in its registry already"
