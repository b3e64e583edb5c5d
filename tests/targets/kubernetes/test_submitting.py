"""What a client asks of a cluster when it starts a run again. The run folder is real; the cluster says yes to all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path

import pytest

from headway.rundir import lease
from headway.rundir.layout import RunFolder
from headway.spec import Budget
from headway.storage import open_store
from headway.targets.kubernetes import lifecycle
from headway.targets.kubernetes.client import Client, NotFound, Object
from headway.targets.kubernetes.options import Options
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
