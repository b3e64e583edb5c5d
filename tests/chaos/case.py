"""One run folder, in a folder or a bucket, and the real supervisors that are started on it one after the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.core.platform import TIMING
from headway.rundir.layout import PLAN, RunFolder
from headway.spec import Cadence, Checkpoint, Job, Secret, dump
from headway.storage import open_store
from tests.chaos import board
from tests.chaos.workload_facts import EPOCHS, STEPS_AN_EPOCH
from tests.supervisor.supervised import alive, plan_of, quiet_environment

REPOSITORY = Path(__file__).resolve().parents[2]
IMPORTS = f"{REPOSITORY / 'src'}:{REPOSITORY}"  # this tree, wherever Headway may be installed from
PATIENCE_S = float(os.environ.get("CHAOS_PATIENCE_S", "120"))  # what works does not wait so long; a busy machine may
RULE = Checkpoint(every=Cadence(steps=2), keep_last=2, keep_every=Cadence(epochs=5))
SCRIPT = "import tests.chaos.workload as workload\nworkload.main()\n"
GRACE_S = 8.0

# Short pauses, so that time goes into training; nothing is switched off.
QUICK = {
    # The driver kills at one step again and again, which a bug would not survive.
    TIMING: "renew=0.3,restart_pause=0,mirror=0.5,halt=2,same_step_crashes=1000",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where run folders are: below a URL, with what it takes to reach it."""

    name: str
    url: str
    env: Mapping[str, str] = field(default_factory=dict)


class Stuck(AssertionError):
    """Something that was to happen did not."""


@dataclass
class Case:
    """A run with its plan, and where its supervisors' output goes."""

    tmp: Path
    place: Place
    ranks: int
    canary: str
    config: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    script: str = SCRIPT
    nodes: int = 1
    prefix: tuple[str, ...] = ()  # what its supervisors are started by: another host's shell, say
    supervisor: subprocess.Popen[bytes] | None = None
    starts: int = 0
    seen_pids: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.boards = self.tmp / "boards"
        self.boards.mkdir(parents=True)
        code = self.tmp / "code"
        code.mkdir()
        (code / "train.py").write_text(self.script)
        self.url = f"{self.place.url}/{self.tmp.name}"
        self.folder = RunFolder(open_store(self.url))
        self.folder.store.write(PLAN, self._plan().to_json().encode())
        self.base_env = {
            **quiet_environment(),
            **QUICK,
            **self.place.env,
            "CHAOS_BOARDS": str(self.boards),
            "CHAOS_CANARY": self.canary,
            "HEADWAY_CODE_DIR": str(code),
            "HEADWAY_RUN": self.tmp.name,
            "HEADWAY_WORK_DIR": str(self.tmp),
            "HEADWAY_SPOOL": str(self.tmp / "spool"),
            "PYTHONPATH": IMPORTS,
            **self.env,
        }

    # Starting and waiting

    def start(self, **env: str) -> subprocess.Popen[bytes]:
        self.starts += 1
        with (self.tmp / f"supervisor-{self.starts}.out").open("wb") as output:
            self.supervisor = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "headway.runtime.worker", "--run", self.url],
                env={**self.base_env, "HEADWAY_ECHO": "1", **env},
                cwd=self.tmp,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.seen_pids.add(self.supervisor.pid)
        return self.supervisor

    @property
    def steps(self) -> int:
        return STEPS_AN_EPOCH * int(self.config.get("epochs", EPOCHS))

    @property
    def running(self) -> bool:
        return self.supervisor is not None and self.supervisor.poll() is None

    def ends(self, supervisor: subprocess.Popen[bytes] | None = None) -> int:
        """The exit code of the newest supervisor, or of another: negative for a signal, unlike a shell's."""
        supervisor = supervisor or self.supervisor
        assert supervisor is not None
        try:
            return supervisor.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Stuck(f"the supervisor did not end:\n{self.explain()}") from None

    def until(self, true: Callable[[], Any], what: str, *, every_s: float = 0.02) -> Any:
        give_up = time.monotonic() + PATIENCE_S
        while not (result := true()):
            if time.monotonic() > give_up:
                raise Stuck(f"{what}\n{self.explain()}")
            time.sleep(every_s)
        return result

    def ranks_now(self, *, above: int = 0) -> list[board.Seen]:
        return board.read(self.boards, above=above)

    # What is left

    def labelled(self) -> set[int]:
        """Living processes of this run, by what the supervisor and everything below it carry in their environment."""
        wanted = (f"CHAOS_BOARDS={self.boards}".encode(), f"HEADWAY_RUN_URL={self.url}".encode())
        found = set()
        for name in filter(str.isdigit, os.listdir("/proc")):
            variables = _environment(int(name))
            if any(one in variables for one in wanted) and alive(int(name)):
                found.add(int(name))
        return found

    def family(self) -> set[int]:
        """The labelled ones, and the supervisor's children without a label: its undertaker."""
        found = self.labelled()
        if self.supervisor is not None:
            found |= children(self.supervisor.pid)
        self.seen_pids |= found
        return found

    def left_behind(self) -> set[int]:
        return self.labelled() | {pid for pid in self.seen_pids if alive(pid) and _is_ours(pid)}

    def kill_everything(self) -> set[int]:
        """At once, by one who knows everything: nothing gets a chance to tidy up."""
        family = self.family()
        for pid in family:
            send(pid, signal.SIGSTOP)
        family |= self.family()
        for pid in family:
            send(pid, signal.SIGKILL)
        return family

    def clean_up(self) -> None:
        """For a driver that gives up: end what still runs."""
        for pid in self.family():
            send(pid, signal.SIGKILL)
        if self.supervisor is not None:
            self.supervisor.wait()

    # Reading

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        return [event for event in self.folder.events() if kind in (None, event["kind"])]

    def log(self, rank: int = 0) -> str:
        return "\n".join(line.text for line in self.folder.log_lines(rank))

    def committed(self) -> int:
        """The newest step whose manifest is there."""
        keys = (entry.key for entry in self.folder.store.list("checkpoints/"))
        steps = [int(key.split("/")[1]) for key in keys if key.endswith("/manifest.json")]
        return max(steps, default=0)

    def explain(self) -> str:
        outputs = sorted(self.tmp.glob("supervisor-*.out"), key=lambda path: path.stat().st_mtime)[-2:]
        return "\n".join(f"-- {path.name}\n{path.read_text(errors='replace')[-6000:]}" for path in outputs)

    def _plan(self) -> Any:
        job = Job(
            name="chaos",
            script="train.py",
            config=self.config,
            seed=7,
            checkpoint=RULE,
            retries=10_000,
            secrets={"CHAOS_SECRET": Secret(ref="env:CHAOS_CANARY")},
        )
        limits = {"grace_s": GRACE_S}
        world = {"nodes": self.nodes, "processes": self.ranks // self.nodes}
        return plan_of(job=dump(job), limits=limits, environment={"threads": "1"}, **world)


def children(pid: int) -> set[int]:
    found: set[int] = set()
    for task in _tasks(pid):
        try:
            found |= {int(child) for child in (task / "children").read_text().split()}
        except OSError:
            continue  # the thread has ended
    return found


def send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _is_ours(pid: int) -> bool:
    """A pid is used again sooner or later: only what looks like ours counts."""
    try:
        return b"headway" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
