"""A real supervisor on a real run folder, with small rank scripts in place of training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.core.plan import Code, Limits, Plan
from headway.core.platform import TIMING
from headway.rundir.layout import PLAN, RunFolder
from headway.storage import open_store
from tests.waiting import wait_until

PATIENCE_S = 60.0  # for a machine with much else to do; a test that passes never waits so long

# What every rank script may use: saying things on the control pipe, waiting for a file, ending on SIGTERM.
PREAMBLE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["HEADWAY_ATTEMPT"])
HERE = Path(os.environ["TEST_DIR"])
def control(**record):
    os.write(int(os.environ["HEADWAY_CONTROL_FD"]), (json.dumps(record) + "\\n").encode())
def mark(name):
    (HERE / name).write_text(str(os.getpid()))
def wait(name=None):
    while name is None or not (HERE / name).exists():
        time.sleep(0.01)
def on_term(code=143, then=lambda: None):
    signal.signal(signal.SIGTERM, lambda n, f: (then(), sys.stdout.flush(), os._exit(code)))
"""


def plan_of(**changes: Any) -> Plan:
    """A plan of a script; `job`, `limits` and any other field can be changed."""
    job = {
        "name": "t",
        "script": "train.py",
        "args": [],
        "retries": 3,
        "env": {},
        "secrets": {},
        **changes.pop("job", {}),
    }
    limits = {"budget_s": None, "max_wait_s": None, "grace_s": 8.0, "second": "none", **changes.pop("limits", {})}
    fields: dict[str, Any] = {
        "headway": "0",
        "job": job,
        "target": "local",
        "kind": "local",
        "options": {},
        "code": Code(sha256="0", files=1, bytes=1, biggest=(), wheel="w", wheel_sha256="0"),
        "data": {},
        "nodes": 1,
        "processes": 1,
        "limits": Limits(**limits),
        "environment": {},
        "price": {},
    }
    return Plan(**{**fields, **changes})


@dataclass
class Supervisor:
    """One supervisor process."""

    process: subprocess.Popen[str]
    output: Path

    def ends(self) -> int:
        return self.process.wait(PATIENCE_S)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    @property
    def printed(self) -> str:
        return self.output.read_text(errors="replace")


@dataclass
class Case:
    """A run folder with a plan, and the supervisors started on it."""

    tmp: Path
    plan: Plan
    url: str
    env: dict[str, str]
    supervisors: list[Supervisor] = field(default_factory=list)

    @property
    def folder(self) -> RunFolder:
        return RunFolder(open_store(self.url))

    def start(self, prefix: Sequence[str] = (), **env: str) -> Supervisor:
        output = self.tmp / f"supervisor-{len(self.supervisors)}.out"
        with output.open("w") as file:
            process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "headway.runtime.worker", "--run", self.url],
                env={**self.env, **env},
                cwd=self.tmp,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.supervisors.append(Supervisor(process, output))
        return self.supervisors[-1]

    def run(self, **env: str) -> int:
        return self.start(**env).ends()

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        return [event for event in self.folder.events() if kind in (None, event["kind"])]

    @property
    def ended(self) -> dict[str, Any]:
        ended = self.folder.ended()
        assert ended is not None, self.supervisors[-1].printed
        assert self.events()[-1]["kind"] == "ended"
        return ended

    def log(self, rank: int = 0) -> list[str]:
        return [line.text for line in self.folder.log_lines(rank)]

    def marked(self, name: str) -> int:
        """Wait for a rank's `mark(name)`; the pid that made it."""
        wait_until(lambda: (self.tmp / name).exists() and (self.tmp / name).read_text() != "", self.explain)
        return int((self.tmp / name).read_text())

    def mark(self, name: str) -> None:
        (self.tmp / name).write_text("1")

    def explain(self) -> str:
        return "\n".join(supervisor.printed for supervisor in self.supervisors)

    def left_behind(self) -> list[str]:
        """Processes that still carry this test's label, whatever they are."""
        wanted = f"TEST_DIR={self.tmp}".encode()
        return [
            f"{pid} {_read(pid, 'cmdline').replace(bytes(1), b' ').decode(errors='replace')}"
            for pid in filter(str.isdigit, os.listdir("/proc"))
            if wanted in _read(pid, "environ").split(b"\0")
        ]

    def clean_up(self) -> None:
        for supervisor in self.supervisors:
            if supervisor.process.poll() is None:
                supervisor.process.kill()
                supervisor.process.wait()
        wait_until(lambda: not self.left_behind(), lambda: str(self.left_behind()))


def make_case(tmp: Path, script: str, *, name: str = "run", **changes: Any) -> Case:
    """The run folder with its plan, and the script beside it."""
    code = tmp / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text(PREAMBLE + textwrap.dedent(script))
    plan = plan_of(**changes)
    url = str(tmp / name)
    open_store(url).write(PLAN, plan.to_json().encode())
    env = {
        **quiet_environment(),
        "TEST_DIR": str(tmp),
        "HEADWAY_CODE_DIR": str(code),
        "HEADWAY_RUN": name,
        "HEADWAY_WORK_DIR": str(tmp),
        TIMING: "renew=0.3,restart_pause=0.05,mirror=0.3",
    }
    return Case(tmp=tmp, plan=plan, url=url, env=env)


def quiet_environment() -> Mapping[str, str]:
    """This process's environment without what a world could be read from."""
    foreign = ("HEADWAY_", "PET_", "SLURM_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "CLUSTER_SPEC", "MASTER_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def alive(pid: int) -> bool:
    state = _read(str(pid), "stat").rpartition(b")")[2].split()
    return bool(state) and state[0] not in (b"Z", b"X")


def _read(pid: str, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


def cases(tmp_path: Path) -> Iterator[Callable[..., Case]]:
    """For a fixture: makes cases, and holds each to leaving nothing behind."""
    made: list[Case] = []

    def make(script: str, **changes: Any) -> Case:
        made.append(make_case(tmp_path, script, **changes))
        return made[-1]

    yield make
    for case in made:
        case.clean_up()
