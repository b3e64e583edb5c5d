"""A run on this machine whose folder is in a bucket: nothing of it stays here but what is not in the bucket yet."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.core.types import State
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.targets.fake import FakeBehaviour
from headway.targets.local import processes
from tests.contract.plays import plan_play, write_project
from tests.contract.suite import WAITS
from tests.servers.gcs import GcsServer
from tests.waiting import wait_until


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[FakeBehaviour], RunHandle]]:
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "GCE_", "CLOUDSDK_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    project = write_project(tmp_path / "project")
    with GcsServer("bucket") as server:
        server.tokens.add("emulator")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        holds: list[RunHandle] = []

        def begin(play: FakeBehaviour) -> RunHandle:
            plan = plan_play(project, play, on="local", outputs="gs://bucket/runs")
            holds.append(lifecycle.launch(plan, detach=True))
            return holds[-1]

        yield begin
        for hold in holds:
            hold.target.down(hold.target_handle)


def place(hold: RunHandle) -> Path:
    return Path(hold.target_handle.details["dir"])


def test_it_runs_logs_and_is_cleared_from_this_machine(
    start: Callable[[FakeBehaviour], RunHandle], tmp_path: Path
) -> None:
    lines = tuple(f"line {i}" for i in range(100))
    hold = start(FakeBehaviour(lines=lines))
    assert place(hold).is_relative_to(tmp_path / "home" / "local")
    assert [line.text for line in hold.logs(follow=True, rank=0)] == list(lines)
    outcome = hold.wait()
    assert outcome.status.state is State.FINISHED
    assert outcome.receipt is not None
    assert outcome.receipt.left == ()
    assert not place(hold).exists()
    assert [line.text for line in lifecycle.logs(hold.url, rank=0)] == list(lines)


@pytest.mark.slow
def test_what_was_printed_before_a_kill_is_not_lost(start: Callable[[FakeBehaviour], RunHandle]) -> None:
    hold = start(WAITS)
    wait_until(lambda: any("waits" in line.text for line in hold.logs(rank=0)), "it prints")
    supervisor = processes.read_supervisor(place(hold))
    assert supervisor is not None
    supervisor.send(signal.SIGKILL)
    wait_until(lambda: hold.target.status(hold.target_handle).state is State.LOST, "it is lost")
    assert hold.outcome().exit_code == 4
    assert [line.text for line in hold.logs(rank=0)] == ["rank 0 of 1 waits"], "from the spool, kept for this"
    again = lifecycle.resume(hold.url)
    wait_until(lambda: len(list(again.folder.log_lines(rank=0))) == 2, "both attempts' lines are in the bucket")
    assert again.stop().status.state is State.STOPPED
    assert not place(hold).exists()
