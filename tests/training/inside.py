"""Runs inside the test's own process, for what needs no killing. Each is closed before the next begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.rundir.layout import PLAN, RunFolder
from headway.spec import Job, dump
from headway.storage import open_store
from headway.training.context import Session
from headway.training.run import Run
from tests.supervisor.supervised import plan_of

Start = Callable[..., Run]


def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """`start(**job)` begins the next attempt of one run, closing the one before it."""
    url = str(tmp_path / "run")
    open_runs: list[Run] = []
    attempt = 0

    def start(*, deadline_s: float | None = None, **job: Any) -> Run:
        nonlocal attempt
        attempt += 1
        for run in open_runs:
            run._boundary.close()
        plan = plan_of(job=dump(Job(name="t", script="train.py", **{"seed": 3, **job})))
        RunFolder(open_store(url)).store.write(PLAN, plan.to_json().encode())
        monkeypatch.setenv("HEADWAY_RUN_URL", url)
        monkeypatch.setenv("HEADWAY_ATTEMPT", str(attempt))
        if deadline_s is not None:
            monkeypatch.setenv("HEADWAY_DEADLINE_S", str(deadline_s))
        open_runs.append(Run(Session(None, {}, 0)))
        return open_runs[-1]

    yield start
    for run in open_runs:
        run._boundary.close()
