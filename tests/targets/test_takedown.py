"""Processes are found by what they carry, ended gently first, and the receipt tells what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.core import platform
from headway.targets.local import processes as local_processes
from headway.targets.local.processes import Process, take_down

Spawn = Callable[..., subprocess.Popen[str]]
Listing = Callable[..., list[Process]]

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)
MEEK = "import time; print('up', flush=True); time.sleep(600)"
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={})
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    started: list[subprocess.Popen[str]] = []

    def start(code: str, run: str = "r", **more: str) -> subprocess.Popen[str]:
        env = {
            **os.environ,
            local_processes.RUN_VARIABLE: run,
            local_processes.URL_VARIABLE: f"{tmp_path}/{run}",
            local_processes.TARGET_VARIABLE: "local",
            **more,
        }
        process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        process.first_line = process.stdout.readline().strip()  # type: ignore[attr-defined]
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def of(tmp_path: Path) -> Listing:
    return lambda run="r", **more: local_processes.processes_of(f"{tmp_path}/{run}", target="local", **more)


def pids(found: list[Process]) -> list[int]:
    return [process.pid for process in found]


def test_only_the_processes_of_this_run_on_this_target_are_found(spawn: Spawn, of: Listing) -> None:
    mine = spawn(MEEK)
    spawn(MEEK, run="another")
    spawn(MEEK, **{local_processes.TARGET_VARIABLE: "ssh"})
    assert pids(of()) == [mine.pid]


def test_a_folder_reached_through_a_link_is_the_same_folder(spawn: Spawn, of: Listing, tmp_path: Path) -> None:
    mine = spawn(MEEK)
    (tmp_path / "r").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "r")
    assert pids(of("link")) == [mine.pid]


def test_a_child_that_wiped_its_environment_is_found_below_its_parent(spawn: Spawn, of: Listing) -> None:
    parent = spawn(PARENT)
    child = int(parent.first_line)  # type: ignore[attr-defined]
    assert pids(of()) == sorted([parent.pid, child])
    assert pids(local_processes.roots(of())) == [parent.pid]
    take_down("r", of, grace_s=30)
    assert platform.process_start_time(child) == ""


def test_a_corpse_is_not_alive(spawn: Spawn, of: Listing) -> None:
    process = spawn(MEEK)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet buried by its parent
    assert of() == []


def test_what_asks_is_not_part_of_what_is_asked_about(tmp_path: Path) -> None:
    code = "import sys; from headway.targets.local.processes import *; print(processes_of(sys.argv[1], target='local'))"
    env = {
        **os.environ,
        local_processes.URL_VARIABLE: f"{tmp_path}/r",
        local_processes.TARGET_VARIABLE: "local",
        local_processes.RUN_VARIABLE: "r",
    }
    command = [sys.executable, "-c", code, f"{tmp_path}/r"]
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_signal_never_reaches_a_later_process_with_the_same_number(spawn: Spawn) -> None:
    process = spawn(MEEK)
    Process(process.pid, "started at another time", 0, 0, "gone").send(signal.SIGKILL)
    assert process.poll() is None
    Process(2**22 + 7, "1", 0, 0, "never was").send(signal.SIGKILL)


def test_the_gentle_go_at_once_and_the_stubborn_by_force(spawn: Spawn, of: Listing) -> None:
    meek, stubborn = spawn(MEEK), spawn(STUBBORN)
    receipt = take_down("r", of, grace_s=0.5)
    assert (meek.wait(), stubborn.wait()) == (-signal.SIGTERM, -signal.SIGKILL)
    assert {text.split()[1] for text in receipt.removed} == {str(meek.pid), str(stubborn.pid)}
    assert receipt.created == receipt.removed
    assert receipt.left == ()


def test_what_goes_by_itself_is_not_asked(spawn: Spawn, of: Listing) -> None:
    leaving = spawn("import time; print('up', flush=True); time.sleep(0.3)")
    take_down("r", of, signal_after_s=60, grace_s=0)
    assert leaving.wait() == 0


def test_what_was_recorded_stands_in_the_receipt_though_it_is_long_gone() -> None:
    gone = Process(2**22 + 7, "1", 0, 0, "supervisor")
    receipt = take_down("r", list, known=[gone], grace_s=1)
    assert receipt.removed == (f"process {gone.pid} (supervisor)",)


def test_what_does_not_die_is_said_to_be_left(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.targets.local.processes.FORCE_S", 0.1)
    monkeypatch.setattr(Process, "send", lambda self, number: None)  # as for a process that waits for a dead disk
    process = spawn(MEEK)
    undead = Process(process.pid, platform.process_start_time(process.pid), 0, 0, "python")
    receipt = take_down("r", lambda: [undead], grace_s=0.1)
    assert receipt.left == (str(undead),)
    assert receipt.removed == ()


def test_a_process_that_appears_during_the_take_down_is_ended_too(spawn: Spawn, of: Listing, tmp_path: Path) -> None:
    born = tmp_path / "born"
    spawn(
        "import os, signal, subprocess, sys, time\n"
        "def fork(*_):\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"    open({str(born)!r}, 'w').write(str(child.pid))\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, fork)\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    assert take_down("r", of, grace_s=20).left == ()
    limit = time.monotonic() + 10
    while platform.process_start_time(int(born.read_text())):
        assert time.monotonic() < limit
