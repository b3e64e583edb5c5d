"""Machines reached by ssh: a real sshd on this one, its outputs mirrored, its connections cut, its client killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import TargetError
from headway.core.types import Target
from headway.launcher.lifecycle import RunHandle
from headway.planning import Plan
from headway.spec import TargetEntry
from headway.storage import Store, open_store
from headway.targets.local import processes as local_processes
from headway.targets.ssh import lifecycle
from headway.targets.ssh.options import Options
from headway.targets.ssh.target import SshTarget
from tests.contract.plays import plan_play, write_project
from tests.contract.suite import TargetContract
from tests.testbed.sshd import Server, lacking, running_below
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lacking()), reason=f"no sshd here: {lacking()}"),
]


def there(hold: RunHandle) -> list[local_processes.Process]:
    """The run's processes on the machine behind the connection, which is this one."""
    label = [found for found in local_processes.labels(target="ssh") if found[local_processes.RUN_VARIABLE] == hold.run]
    return local_processes.processes_of(label[0][local_processes.URL_VARIABLE], target="ssh") if label else []


class SshContract(TargetContract):
    kind = "ssh"

    def entry(self, server: Server, tmp_path: Path) -> dict[str, Any]:
        """The target's entry in the job file."""
        return {"host": "box", "config": str(server.config), "dir": str(tmp_path / "there"), "python": sys.executable}

    @pytest.fixture
    def options(self, server: Server, tmp_path: Path) -> dict[str, Any]:
        return self.entry(server, tmp_path)

    @pytest.fixture
    def target(self, options: dict[str, Any], tmp_path: Path) -> Iterator[Target]:
        target = SshTarget(Options(**options), log=lambda text: None)
        yield target
        wait_until(lambda: running_below(tmp_path) == [], "nothing of ours runs there")

    @pytest.fixture
    def plan_of(self, tmp_path: Path, outputs: str, options: dict[str, Any]) -> Callable[..., Plan]:
        project = write_project(tmp_path / "project")
        entries = {"ssh": TargetEntry(kind="ssh", options=options)}
        return lambda play, **more: plan_play(
            project, play, **{"on": "ssh", "outputs": outputs, "targets": entries, **more}
        )

    def half_gone(self, hold: RunHandle) -> None:
        processes = there(hold)
        (leader,) = [process for process in processes if process.runs("headway.runtime.worker")]
        ranks = [process for process in processes if process.parent == leader.pid and not process.runs("-I")]
        watchdog = next(process for process in processes if process.pid == leader.parent)
        os.kill(ranks[-1].pid, signal.SIGSTOP)  # it cannot die of a SIGTERM any more
        os.kill(watchdog.pid, signal.SIGKILL)
        os.kill(leader.pid, signal.SIGKILL)

    @contextmanager
    def lost_host(self, hold: RunHandle) -> Iterator[None]:
        processes = there(hold)
        for process in processes:
            process.send(signal.SIGSTOP)
        yield
        for process in processes:
            process.send(signal.SIGKILL)
        wait_until(lambda: there(hold) == [], "they die")

    def lease_store(self, hold: RunHandle) -> Store:
        (label,) = [
            found for found in local_processes.labels(target="ssh") if found[local_processes.RUN_VARIABLE] == hold.run
        ]
        return open_store(label[local_processes.URL_VARIABLE])

    def own_limit_s(self, hold: RunHandle) -> float | None:
        (found,) = [each for each in hold.target.list_runs() if each.url == hold.url]
        return float(found.details["expires"]) - time.time()

    @contextmanager
    def failing_submit(self, monkeypatch: pytest.MonkeyPatch, target: Target) -> Iterator[None]:
        def fail(*arguments: Any) -> None:
            raise TargetError("the connection is cut when everything has been brought there")

        with monkeypatch.context() as patch:
            patch.setattr(lifecycle, "start", fail)
            yield

    def lines_about_a_secret(self) -> tuple[str, ...]:
        return ("the token is {TOKEN}",)


class TestMirrored(SshContract):
    """Outputs in a folder of this machine, which the host does not see."""
