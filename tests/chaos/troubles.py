"""All that can happen to a run besides a kill: one trouble a run, drawn by chance, and the same bits at its end.

Each takes a case from its start to its end. Every choice comes from one seeded generator, so a run can be replayed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import faults, invariants
from tests.chaos.case import IMPORTS, REPOSITORY, Case, Place, send
from tests.chaos.faults import HOOKS
from tests.chaos.invariants import Result
from tests.servers.loopback import Fault, LoopbackServer, Request

CONFIG = {"epochs": 3, "workers": 0, "pause_s": 0.02}
RANKS = (1, 1, 2)
_MOST_STARTS = 6


class Skipped(Exception):
    """This machine cannot do that; the message says why."""


@dataclass
class Scene:
    """One run that trouble is made for."""

    case: Case
    dice: random.Random
    server: LoopbackServer | None = None  # in front of the bucket
    hurt: bool = field(default=False)  # a checkpoint was damaged: falling back is right

    def until_commit(self, more_than: int = 0) -> int:
        """Wait for a commit; 0 when the run ended first."""
        case = self.case
        wanted = self.dice.choice([2, 4, 8, 12])
        case.until(lambda: case.committed() >= max(wanted, more_than) or not case.running, "no commit ever came")
        return case.committed() if case.running else 0

    def to_its_end(self, also: tuple[int, ...] = ()) -> None:
        """Start it again, as its place would, until it has ended well."""
        case = self.case
        for _ in range(_MOST_STARTS):
            code = case.ends()
            if code == 0:
                return
            assert code in (143, -9, *also), f"the supervisor ended with {code}\n{case.explain()}"
            case.until(lambda: not case.left_behind(), "something still runs")
            case.start()
        raise AssertionError(f"it does not come to an end\n{case.explain()}")


Trouble = Callable[[Scene], str]  # what was done, in words


def stopped_by_signals(scene: Scene) -> str:
    """Once or twice, to the supervisor: the second ends it at once, and even that loses no commit."""
    case, number = scene.case, scene.dice.choice([signal.SIGTERM, signal.SIGINT])
    case.start()
    twice = scene.dice.random() < 0.4
    if scene.until_commit() and case.supervisor is not None:
        send(case.supervisor.pid, number)
        if twice:
            time.sleep(scene.dice.uniform(0, 0.3))
            send(case.supervisor.pid, number)
    scene.to_its_end(also=(130, -2, -15))
    return f"{signal.Signals(number).name} {'twice' if twice else 'once'}"


def held_still(scene: Scene) -> str:
    """A rank that stands still for a while and goes on: a machine that swaps, a host that migrates it."""
    case = scene.case
    case.start()
    if scene.until_commit():
        victim = scene.dice.choice(case.ranks_now()).pid
        send(victim, signal.SIGSTOP)
        time.sleep(scene.dice.uniform(0.1, 2.0))
        send(victim, signal.SIGCONT)
    scene.to_its_end()
    return "a rank held still"


def damaged(scene: Scene) -> str:
    """A file of the newest checkpoint cut, flipped, removed or swapped while nothing runs."""
    case, dice = scene.case, scene.dice
    case.start()
    newest = scene.until_commit(more_than=4)
    if not newest:
        scene.to_its_end()
        return "nothing: it ended first"
    case.kill_everything()
    case.ends()
    store = case.folder.store
    folder = f"checkpoints/{case.committed():08d}/"
    keys = [entry.key for entry in store.list(folder)]
    key, act = dice.choice(keys), dice.choice(["cut", "flipped", "removed", "swapped"])
    body = bytearray(store.read(key))
    if act == "removed":
        store.delete(key)
    elif act == "swapped":
        store.write(key, store.read(dice.choice([other for other in keys if other != key])))
    elif act == "cut":
        store.write(key, bytes(body[: dice.randrange(len(body))]))
    else:
        body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
        store.write(key, bytes(body))
    scene.hurt = True
    case.start()
    scene.to_its_end()
    return f"a file {act}"


def started_twice(scene: Scene) -> str:
    """A second supervisor on the same folder: it is told, and nothing is disturbed."""
    case = scene.case
    case.start()
    first = case.supervisor
    if scene.until_commit():
        case.start(HEADWAY_SPOOL=str(case.tmp / "spool-of-another"))
        second, case.supervisor = case.supervisor, first
        assert second is not None
        code = second.wait(120)
        assert code in ((2, 0) if first is not None and first.poll() is not None else (2,)), (
            f"the second ended with {code}"
        )
    scene.to_its_end()
    return "started twice"


def clock_set_back(scene: Scene) -> str:
    hours = scene.dice.choice([1, 24, 24 * 365])
    scene.case.base_env |= {"CHAOS_CLOCK_BACK_S": str(hours * 3600)}
    scene.case.base_env |= {"PYTHONPATH": f"{HOOKS}:{IMPORTS}", "CHAOS_ROOT": str(REPOSITORY)}
    scene.case.start()
    if scene.dice.random() < 0.5 and scene.until_commit():
        scene.case.kill_everything()
    scene.to_its_end()
    return "the clock set back"


def full_disk(scene: Scene) -> str:
    """The run folder's disk fills up, and has room again."""
    case = scene.case
    disk = Path(case.url)
    with _small_disk(disk):
        case.start()
        ballast = disk / "ballast"
        if scene.until_commit():
            _fill(ballast)
            time.sleep(scene.dice.uniform(0.5, 3.0))
            ballast.unlink()
        scene.to_its_end(also=(1,))
    return "a full disk"


def store_in_trouble(scene: Scene) -> str:
    """Between the run and its bucket: refusals, lost answers, cut bodies, slowness or silence, for a while."""
    case, dice, server = scene.case, scene.dice, scene.server
    assert server is not None
    kind = dice.choice(list(_KINDS))
    case.start()
    if scene.until_commit():
        spell = _Spell(kind, time.monotonic() + dice.uniform(0.5, 4.0), dice)
        server.faults.append(spell)
        case.until(lambda: spell.over or not case.running, "the store's trouble never ended")
    scene.to_its_end()
    server.faults.clear()
    return f"a store: {kind}"


_KINDS = {"refused with 503": "refuse", "answers lost": "lose", "bodies cut": "cut", "slow": "none", "cut off": "drop"}


class _Spell(Fault):
    """A stretch of time in which requests fare badly."""

    def __init__(self, name: str, until: float, dice: random.Random) -> None:
        super().__init__(kind=_KINDS[name], times=10_000)  # type: ignore[arg-type]
        self._until, self._dice = until, dice
        if name == "slow":
            self.meanwhile = lambda: time.sleep(dice.uniform(0.0, 0.5))

    @property
    def over(self) -> bool:
        return time.monotonic() > self._until

    def strikes(self, request: Request) -> bool:
        return not self.over and (self.kind == "none" or self._dice.random() < 0.7)


IN_A_FOLDER: dict[str, Trouble] = {
    "signals": stopped_by_signals,
    "held still": held_still,
    "damage": damaged,
    "started twice": started_twice,
    "clock": clock_set_back,
    "full disk": full_disk,
}
IN_A_BUCKET: dict[str, Trouble] = {"store": store_in_trouble, "signals": stopped_by_signals, "damage": damaged}


@dataclass
class Maker:
    """Makes trouble for one run after the other."""

    folder: Path
    seed: int
    place: Place
    endpoint: str
    bucket: Callable[..., Place]
    straight: dict[int, Result] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def one(self, number: int) -> str:
        """One run with its trouble; what was done."""
        dice = random.Random(f"{self.seed} trouble {number}")
        ranks = dice.choice(RANKS)
        expected = self._unbroken(ranks)
        far = dice.random() < 0.4
        name = dice.choice(list(IN_A_BUCKET if far else IN_A_FOLDER))
        with self._scene(number, ranks, dice, far=far) as scene:
            try:
                done = (IN_A_BUCKET if far else IN_A_FOLDER)[name](scene)
                invariants.check(scene.case, expected, [], hurt=scene.hurt)
            except Skipped as why:
                done = f"{name}: skipped, {why}"
            finally:
                scene.case.clean_up()
            self.counts[done] += 1
            shutil.rmtree(scene.case.tmp, ignore_errors=True)
            return f"trouble {number}: {ranks} ranks {'on S3' if far else 'in a folder'}, {done}"

    @contextmanager
    def _scene(self, number: int, ranks: int, dice: random.Random, *, far: bool) -> Iterator[Scene]:
        tmp = self.folder / f"trouble-{number}"
        if not far:
            yield Scene(self._case(tmp, self.place, ranks), dice)
            return
        with faults.proxy(self.endpoint) as server:
            place = self.bucket(self.endpoint, f"trouble-{self.seed}-{number}", through=server.url)
            yield Scene(self._case(tmp, place, ranks), dice, server)

    def _case(self, tmp: Path, place: Place, ranks: int) -> Case:
        canary = f"canary-{random.Random(tmp.name).getrandbits(64):x}"
        return Case(tmp=tmp, place=place, ranks=ranks, canary=canary, config=dict(CONFIG))

    def _unbroken(self, ranks: int) -> Result:
        if ranks not in self.straight:
            case = self._case(self.folder / f"untroubled-{ranks}", self.place, ranks)
            case.start()
            assert case.ends() == 0, case.explain()
            self.straight[ranks] = invariants.check(case, None, [])
        return self.straight[ranks]


@contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    """Two megabytes of memory in place of the run folder, with what was in it."""
    if os.geteuid() != 0:
        raise Skipped("mounting needs root")
    kept = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        raise Skipped(f"no tmpfs here: {done.stderr.decode().strip()}")
    try:
        for name, body in kept.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(body)
        yield
        saved = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)
    for name, body in saved.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(body)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
