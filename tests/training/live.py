"""Real ranks as real processes, started quickly: forked from a server that has imported torch already."""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from headway.core.plan import Code, Limits, Plan
from headway.rundir.layout import PLAN, RunFolder
from headway.spec import Cadence, Checkpoint, Job, dump
from headway.storage import open_store
from tests.waiting import wait_until

PATIENCE_S = 60.0  # for a machine with much else to do; a test that passes never waits so long
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    ["tests.training.training", "headway.training.run", "torch.distributed", "torch._dynamo", "headway.storage.local"]
)


@dataclass
class Case:
    """One run folder, and gangs of ranks that train in it, one attempt after the other."""

    folder: Path
    ranks: int = 1
    config: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Checkpoint = field(default_factory=lambda: Checkpoint(every=Cadence(steps=3)))
    grace_s: float = 20.0
    deadline_s: float | None = None
    url: str = ""
    attempt: int = 0
    claimed: bool = False  # somebody else has written the plan

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.url = self.url or str(self.folder / "run")
        self.read = RunFolder(open_store(self.url))
        if self.claimed:
            return
        self.read.store.write(PLAN, self._plan().to_json().encode())

    def start(self, **env: str) -> Gang:
        self.attempt += 1
        return Gang(self, env)

    def train(self, **env: str) -> list[int]:
        """One attempt to its end; the ranks' exit codes."""
        return self.start(**env).wait()

    def log(self, rank: int = 0, attempt: int | None = None) -> str:
        return (self.folder / f"a{attempt or self.attempt}-r{rank}.log").read_text()

    def digest(self, rank: int = 0) -> str:
        """Of every byte of the trained state."""
        return (self.folder / f"digest-{rank}").read_text()

    def history(self) -> dict[int, dict[str, Any]]:
        """Metrics by step, without their times. A step that appears twice with other values is an error."""
        merged: dict[int, dict[str, Any]] = {}
        for record in self.read.metrics():
            values = {name: value for name, value in record.items() if name != "time"}
            known = merged.setdefault(record["step"], {})
            for name, value in values.items():
                assert known.get(name, value) == value, f"step {record['step']}: two values of {name}"
            known |= values
        return merged

    def _plan(self) -> Plan:
        job = Job(name="t", script="train.py", config=dict(self.config), seed=7, checkpoint=self.checkpoint)
        return Plan(
            headway="0",
            job=dump(job),
            target="local",
            kind="local",
            options={},
            code=Code(sha256="0", files=1, bytes=1, biggest=(), wheel="w", wheel_sha256="0"),
            data={},
            nodes=1,
            processes=self.ranks,
            limits=Limits(budget_s=None, max_wait_s=None, grace_s=self.grace_s, second="none"),
            environment={},
            price={},
        )


class Gang:
    """The ranks of one attempt."""

    def __init__(self, case: Case, env: Mapping[str, str]) -> None:
        self.case = case
        port = _free_port()
        self.processes: list[BaseProcess] = []
        for rank in range(case.ranks):
            log = case.folder / f"a{case.attempt}-r{rank}.log"
            process = _server.Process(target=_rank, args=(self._env(rank, port, env), str(log)), daemon=False)
            process.start()
            self.processes.append(process)

    def wait(self) -> list[int]:
        """When one rank fails the others are killed, as a supervisor would."""

        def ended() -> bool:
            if any(process.exitcode not in (None, 0, 143) for process in self.processes):
                self.kill()
            return not any(process.is_alive() for process in self.processes)

        try:
            wait_until(ended, lambda: f"the ranks did not end: {self.case.log()}", PATIENCE_S)
        except AssertionError:
            self.kill()
            raise
        return self.codes

    @property
    def codes(self) -> list[int]:
        return [process.exitcode if process.exitcode is not None else -999 for process in self.processes]

    def kill(self, number: int = signal.SIGKILL, ranks: list[int] | None = None) -> None:
        for rank in ranks if ranks is not None else range(len(self.processes)):
            pid = self.processes[rank].pid
            assert pid is not None
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def _env(self, rank: int, port: int, more: Mapping[str, str]) -> dict[str, str]:
        case = self.case
        env = {
            "HEADWAY_RUN_URL": case.url,
            "HEADWAY_ATTEMPT": str(case.attempt),
            "HEADWAY_GRACE_S": str(case.grace_s),
            "TEST_DIR": str(case.folder),
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(case.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            **more,
        }
        return env if case.deadline_s is None else {**env, "HEADWAY_DEADLINE_S": str(case.deadline_s)}


def _rank(env: Mapping[str, str], log: str) -> None:
    """A rank's whole life, with the end that a plain interpreter would give it."""
    os.setsid()
    os.environ.update(env)
    fd = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    code = 0
    try:
        from tests.training import training

        training.main(json.loads(os.environ.get("TEST_OPTIONS", "{}")))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:  # noqa: BLE001 - the end of the process: what an interpreter does too
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
