"""Ranks that hang, each in another way: the stuck rank and its line are named, and the run is restarted or ended."""

from __future__ import annotations

import os
import signal
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.supervised import Case, cases
from tests.waiting import wait_until

Make = Callable[..., Case]
QUICK = "renew=0.3,restart_pause=0.05,mirror=0.3,halt=1,stall=1.5"
STEPS = """
def steps(count, first=0):
    for step in range(first, first + count):
        control(progress={"step": step, "phase": "step", "epoch": 0})
        time.sleep(0.05)
"""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    for made in cases(tmp_path):
        yield partial(_with_steps, made)


def _with_steps(made: Make, script: str, **more: Any) -> Case:
    return made(STEPS + textwrap.dedent(script), **more)


def stall_of(case: Case) -> dict[str, Any]:
    wait_until(lambda: case.events("stall"), case.explain)
    return case.events("stall")[0]


def line_of(case: Case, text: str) -> str:
    lines = (case.tmp / "code" / "train.py").read_text().splitlines()
    return f"train.py:{next(number for number, line in enumerate(lines, 1) if text in line)}"


def end(case: Case) -> None:
    case.supervisors[-1].send(signal.SIGTERM)
    case.supervisors[-1].ends()


def test_a_sleep_in_user_code_is_named_by_status_and_why(make: Make) -> None:
    case = make("steps(20)\ntime.sleep(3600)  # stuck", job={"on_stall": "report"})
    case.start(HEADWAY_TIMING=QUICK)
    found = stall_of(case)
    assert (found["rank"], found["at"]) == (0, line_of(case, "# stuck"))
    assert "time.sleep(3600)" in found["where"]
    assert "no step for" in found["what"]
    wait_until(lambda: case.folder.store.read(found["stacks"]), case.explain)
    assert b"train.py" in case.folder.store.read(found["stacks"])
    wait_until(lambda: "stuck" in str((case.folder.progress() or {}).get("condition")), case.explain)
    end(case)
    assert case.ended["state"] == "stopped"


def test_a_stopped_rank_is_named_and_the_run_goes_on_when_it_continues(make: Make) -> None:
    case = make(
        """
        mark(f"rank-{RANK}")
        for step in range(100000):
            control(progress={"step": step, "phase": "step"}) if not (HERE / "hold").exists() else None
            time.sleep(0.05)
        """,
        processes=2,
        job={"on_stall": "report"},
    )
    case.start(HEADWAY_TIMING=QUICK)
    pid = case.marked("rank-1")
    wait_until(lambda: (case.folder.progress() or {}).get("step", 0) > 20, case.explain)
    os.kill(pid, signal.SIGSTOP)
    case.mark("hold")  # the others wait for it at their next step
    found = stall_of(case)
    assert found["rank"] == 1
    assert "stopped by a signal" in found["where"]
    os.kill(pid, signal.SIGCONT)
    (case.tmp / "hold").unlink()
    wait_until(lambda: case.events("stall_over"), case.explain)
    wait_until(lambda: "condition" not in (case.folder.progress() or {}), case.explain)
    end(case)


def test_a_stall_is_restarted_once_and_not_again_at_the_same_line(make: Make) -> None:
    case = make("steps(20)\ntime.sleep(3600)  # stuck", job={"stall": 2.0})
    assert case.run(HEADWAY_TIMING=QUICK) == 1
    assert len(case.events("attempt")) == 2
    assert [event["decision"] for event in case.events("fault")] == ["retried in 0.05 s", "not retried"]
    assert f"stalled at {line_of(case, '# stuck')}, as in the attempt before" in case.ended["reason"]


def test_on_stall_stop_ends_the_run(make: Make) -> None:
    case = make("steps(20)\ntime.sleep(3600)  # stuck", job={"stall": 2.0, "on_stall": "stop"})
    assert case.run(HEADWAY_TIMING=QUICK) == 1
    assert len(case.events("attempt")) == 1
    assert "on_stall: stop" in case.ended["reason"]


def test_a_full_pipe_and_a_server_that_never_answers_are_named(make: Make) -> None:
    case = make(
        """
        import socket
        steps(20)
        if ATTEMPT == 1:
            child = subprocess.Popen(["sh", "-c", "yes"], stdout=subprocess.PIPE)
            child.wait()  # pipe
        server = socket.create_server(("127.0.0.1", 0))
        socket.create_connection(server.getsockname()).recv(1)  # store
        """,
        job={"stall": 2.0, "retries": 1},
    )
    assert case.run(HEADWAY_TIMING=QUICK) == 1
    pipe, store = case.events("stall")
    assert pipe["at"] == line_of(case, "# pipe")
    assert "a pipe that is full" in pipe["where"]
    assert store["at"] == line_of(case, "# store")


def test_a_program_that_is_not_python_shows_what_the_kernel_knows(make: Make) -> None:
    case = make("", job={"script": None, "command": ["sh", "-c", "echo on; sleep 3600"], "stall": 2.0, "retries": 0})
    assert case.run(HEADWAY_TIMING=QUICK) == 1
    (found,) = case.events("stall")
    assert "no output, progress or activity" in found["what"]
    assert b"waiting in" in case.folder.store.read(found["stacks"])


def test_a_busy_program_without_output_is_left_alone(make: Make) -> None:
    case = make(
        """
        print("on")
        end = time.monotonic() + 6
        while time.monotonic() < end:
            sum(range(1000))
        """,
    )
    assert case.run(HEADWAY_TIMING="renew=0.3,mirror=0.3,stall=0.05") == 0
    assert case.events("stall") == []


COLLECTIVE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(20):
    dist.all_reduce(torch.ones(4))
    control(progress={"step": step, "phase": "step"})
    time.sleep(0.02)
"""


@pytest.mark.slow
@pytest.mark.torch
def test_a_rank_that_sleeps_while_another_waits_in_a_collective_is_named(tmp_path: Path) -> None:
    found = hang_of_two(tmp_path, "time.sleep(3600)  # stuck")
    assert (found["rank"], found["ranks"]["0"]) == (1, "other ranks")
    assert "1 other rank waits for it" in found["where"]


@pytest.mark.slow
@pytest.mark.torch
def test_ranks_in_different_collectives_are_named_with_their_lines(tmp_path: Path) -> None:
    found = hang_of_two(tmp_path, "dist.recv(torch.ones(4), 0)  # stuck")
    assert found["where"].startswith("all ranks wait for each other: ")
    assert "rank 1 at train.py" in found["where"]
    assert "rank 0 at train.py" in found["where"]


def hang_of_two(tmp_path: Path, line: str) -> dict[str, Any]:
    """Return the stall of two ranks, of which one executes `line` where the other reduces."""
    script = f"{COLLECTIVE}\nif RANK == 1:\n    {line}\ndist.all_reduce(torch.ones(4))\n"
    found = None
    for make in cases(tmp_path):
        case = make(script, processes=2, job={"on_stall": "report"})
        case.start(HEADWAY_TIMING=QUICK)
        found = stall_of(case)
        end(case)
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.torch
def test_a_data_loader_worker_that_hangs_is_told_from_the_training_code(make: Make) -> None:
    case = make(
        """
        import torch
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 100
            def __getitem__(self, at):
                if at == 30: time.sleep(3600)  # worker
                return torch.ones(2)
        for step, batch in enumerate(torch.utils.data.DataLoader(Data(), num_workers=1)):  # loader
            control(progress={"step": step, "phase": "step"})
            time.sleep(0.05)
        """,
        job={"on_stall": "report"},
    )
    case.start(HEADWAY_TIMING=QUICK)
    found = stall_of(case)
    assert found["at"] == line_of(case, "# loader")
    assert "waiting for the data loader" in found["where"]
    wait_until(lambda: case.folder.store.read(found["stacks"]), case.explain)
    assert line_of(case, "# worker").partition(":")[2].encode() in case.folder.store.read(found["stacks"])
    end(case)
