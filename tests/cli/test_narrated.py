"""While a run waits, the attached client says what happens on the target, each event once."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from headway.cli import follow
from headway.core.types import Handle, State, Status
from headway.launcher import lifecycle
from headway.plugins import TARGETS
from headway.targets.fake import FakeBehaviour, FakeTarget
from headway.targets.kubernetes.status import events
from tests.contract.plays import FAKE, plan_play, write_project
from tests.waiting import wait_until


def event(kind: str, reason: str, message: str, time: str, name: str = "night-0") -> dict[str, Any]:
    """An Event as the API server of Kubernetes 1.31 lists it."""
    return {
        "metadata": {"name": f"{name}.{time}", "namespace": "ml", "creationTimestamp": time},
        "involvedObject": {"kind": "Pod", "namespace": "ml", "name": name, "apiVersion": "v1"},
        "reason": reason,
        "message": message,
        "source": {"component": "kubelet"},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
        "type": kind,
    }


RECORDED = [
    event("Normal", "Pulling", 'Pulling image "python:3.11"', "2026-11-18T10:00:31Z"),
    event("Warning", "FailedScheduling", "0/3 nodes are available: 3 Insufficient cpu.", "2026-11-18T10:00:00Z"),
    event("Normal", "TriggeredScaleUp", "pod triggered scale-up: [{pool 1->2 (max: 4)}]", "2026-11-18T10:00:09Z"),
    event("Normal", "Started", "Started container other", "2026-11-18T10:00:40Z", name="another-0"),
]


def test_all_events_of_the_runs_pods_are_told_in_their_order() -> None:
    asked: list[Any] = []

    def api(verb: str, path: str, query: Any = None) -> dict[str, Any]:
        asked.append(query)
        return {"items": RECORDED}

    told = events(api, "ml", ["night-0"], warnings=False)  # type: ignore[arg-type]
    assert [each.partition(":")[0] for each in told] == ["FailedScheduling", "TriggeredScaleUp", "Pulling"]
    assert asked == [{}]
    events(api, "ml", ["night-0"])  # type: ignore[arg-type]
    assert asked[1] == {"fieldSelector": "type=Warning"}


class Slow(FakeTarget):
    """A target whose run waits: its position in the queue changes."""

    position = 9
    events: tuple[str, ...] = ()

    def status(self, handle: Handle) -> Status:
        self.position -= 1
        return Status(state=State.PENDING, reason=f"{max(1, self.position)} jobs are ahead in the queue")

    def startup_events(self, handle: Handle) -> list[str]:
        return list(self.events)


def test_a_wait_is_narrated_and_nothing_is_said_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(TARGETS, "fake", FAKE)
    monkeypatch.setattr(follow, "NARRATE_S", 0.01)
    monkeypatch.setattr(follow, "_QUIET_S", 0.01)
    outputs = f"memory://{os.urandom(6).hex()}/runs"
    plan = plan_play(write_project(tmp_path / "project"), FakeBehaviour(), on="fake", outputs=outputs)
    target = Slow()
    hold = lifecycle.launch(plan, target=target, detach=True)
    said: list[str] = []
    over = threading.Event()
    thread = threading.Thread(target=follow._narrate, args=(hold, over, said.append), daemon=True)
    thread.start()
    wait_until(lambda: target.position < 3)
    target.events = ("Pulling image python:3.11",)
    wait_until(lambda: len(said) == 2)
    wait_until(lambda: target.position < -10)
    over.set()
    thread.join(10)
    assert said[0].endswith("jobs are ahead in the queue")
    assert said[1:] == ["Pulling image python:3.11"]
