"""A StatefulSet on a real cluster: real pods, real names, an S3 server outside, killed in every way there is."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.core.types import Target
from headway.launcher.lifecycle import RunHandle
from headway.planning import Plan
from headway.spec import TargetEntry
from headway.targets.kubernetes.client import ApiError, Client, Object
from headway.targets.kubernetes.options import Options
from headway.targets.kubernetes.target import KubernetesTarget
from tests.contract.plays import plan_play, write_project
from tests.contract.suite import TargetContract
from tests.testbed.kubernetes.bucket import BUCKET, bucket
from tests.testbed.kubernetes.cluster import Cluster, cluster, ready
from tests.waiting import wait_until

__all__ = ["cluster"]
pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]


NAMESPACE = "contract"
ENTRY = TargetEntry(kind="kubernetes", options={"namespace": NAMESPACE})


class Refusing(Client):
    """The real client, which refuses to make one kind of object when a test says so."""

    word: str | None = None

    def __call__(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Object | None = None
    ) -> Object:
        if method == "POST" and self.word and path.endswith(self.word):
            raise ApiError(f"{self.word} was refused")
        return super().__call__(method, path, query=query, body=body)


def supervisors(hold: RunHandle) -> list[int]:
    """Process 1 of the run's pods, by their numbers on the node, which is this machine."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = place.joinpath("cmdline").read_bytes().split(b"\0")
            if b"headway.runtime.worker" in words and hold.url.encode() in words:
                found.append(int(place.name))
        except OSError:  # gone while we looked
            continue
    return found


class TestStatefulSet(TargetContract):
    kind = "kubernetes"

    @pytest.fixture(autouse=True)
    def _shared(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with bucket(cluster, monkeypatch) as shared:
            ready(cluster, NAMESPACE)
            self.shared, self.cluster = shared, cluster
            yield

    @pytest.fixture
    def target(self, _shared: None) -> Iterator[Target]:
        target = KubernetesTarget(Options(namespace=NAMESPACE), api=Refusing())
        yield target
        assert target.list_runs() == []

    @pytest.fixture
    def outputs(self, tmp_path: Path) -> str:
        return f"{BUCKET}/{tmp_path.name}"

    @pytest.fixture
    def plan_of(self, tmp_path: Path, outputs: str) -> Callable[..., Plan]:
        project = write_project(tmp_path / "project")

        def made(play: Any, **more: Any) -> Plan:
            asked = {
                "on": self.kind,
                "outputs": outputs,
                "targets": {self.kind: ENTRY},
                **self.shared,
                **more,
            }
            for name in ("env", "secrets"):
                asked[name] = {**self.shared[name], **(more.get(name) or {})}
            asked["outputs"] = str(asked["outputs"]).replace(f"{tmp_path}/", f"{BUCKET}/")
            return plan_play(project, play, **asked)

        return made

    def half_gone(self, hold: RunHandle) -> None:
        self.cluster.kubectl("-n", NAMESPACE, "delete", "statefulset", hold.run, "--cascade=orphan")
        self.cluster.kubectl("-n", NAMESPACE, "delete", "pod", f"{hold.run}-0", "--force", "--grace-period=0")

    @contextmanager
    def lost_host(self, hold: RunHandle) -> Iterator[None]:
        """A pod whose set is gone is not made again, and a process that is stopped hears no SIGTERM."""
        self.cluster.kubectl("-n", NAMESPACE, "delete", "statefulset", hold.run, "--cascade=orphan")
        (supervisor,) = supervisors(hold)
        os.kill(supervisor, signal.SIGSTOP)
        yield
        self.cluster.kubectl("-n", NAMESPACE, "delete", "pod", f"{hold.run}-0", "--force", "--grace-period=0")
        wait_until(lambda: supervisors(hold) == [], "it is killed with its pod")

    def own_limit_s(self, hold: RunHandle) -> float | None:
        """The reaper's, which lasts longer than the fuse beside it."""
        jobs = self.cluster.items("job", f"headway.run={hold.run}", namespace=NAMESPACE)
        return max(float(job["spec"].get("activeDeadlineSeconds", 0.0)) for job in jobs)

    @contextmanager
    def failing_submit(self, monkeypatch: pytest.MonkeyPatch, target: Target) -> Iterator[None]:
        assert isinstance(target, KubernetesTarget)
        assert isinstance(target.api, Refusing)
        target.api.word = "statefulsets"  # the reaper is there, and what it should guard is refused
        yield
        target.api.word = None

    def lines_about_a_secret(self) -> tuple[str, ...]:
        return ("the token is {TOKEN}",)
