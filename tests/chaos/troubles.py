"""All that can happen to a run besides a kill: one trouble a run, each in its turn, and the same bits at its end.

Each takes a run from its start to its end. Every choice comes from one seeded generator, so a run can be replayed.
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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.chaos import clients, elsewhere, faults, invariants
from tests.chaos.case import IMPORTS, REPOSITORY, Case, Place, send
from tests.chaos.faults import HOOKS
from tests.chaos.invariants import Result
from tests.chaos.network import Hosts, NoNetwork
from tests.chaos.scene import Act, Scene, Skipped
from tests.servers.loopback import Fault, Request

CONFIG = {"epochs": 3, "workers": 0, "pause_s": 0.02}
RANKS = (1, 1, 2)


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
    if not scene.until_commit(more_than=4):
        scene.to_its_end()
        return "nothing: it ended first"
    case.kill_everything()
    case.ends()
    store = case.folder.store
    newest = case.committed()
    folder = f"checkpoints/{newest:08d}/"
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
    scene.commits = [(attempt, step) for attempt, step in scene.commits if step < newest]
    case.start()
    scene.to_its_end()
    return f"a file {act}"


def started_twice(scene: Scene) -> str:
    """A second supervisor on the same folder, at any time: one trains, the other is told, and nothing is disturbed."""
    case, when = scene.case, scene.dice.choice(["at once", "in the middle", "after a kill"])
    first, attempts = case.start(), 1
    if when != "at once" and not scene.until_commit():
        scene.to_its_end()
        return "nothing: it ended first"
    if when == "after a kill":
        scene.kill_everything()
        first, attempts = case.start(), 2
    second = case.start(HEADWAY_SPOOL=str(case.tmp / "spool-of-another"))
    case.until(lambda: not (first.poll() is second.poll() is None), "neither was sent away")
    told, case.supervisor = (first, second) if first.poll() is not None else (second, first)
    assert told.poll() in (2, 0), f"one of two ended with {told.poll()}\n{case.explain()}"
    scene.to_its_end(also=(2,) if told.poll() == 0 else ())  # the second came when the first had done everything
    assert len(case.events("attempt")) <= attempts, "both have trained"
    return f"started twice, {when}"


def clock_set_back(scene: Scene) -> str:
    hours = scene.dice.choice([1, 24, 24 * 365])
    scene.case.base_env |= {"CHAOS_CLOCK_BACK_S": str(hours * 3600)}
    scene.case.base_env |= {"PYTHONPATH": f"{HOOKS}:{IMPORTS}", "CHAOS_ROOT": str(REPOSITORY)}
    scene.case.start()
    if scene.dice.random() < 0.5 and scene.until_commit():
        scene.kill_everything()
        scene.case.start()
    scene.to_its_end()
    return "the clock set back"


def full_disk(scene: Scene) -> str:
    """The run folder's disk is full for a while, and has room again."""
    case = scene.case
    disk = Path(case.url)
    with _small_disk(disk):
        case.start()
        if scene.until_commit():
            room_at = time.monotonic() + scene.dice.uniform(0.5, 6.0)
            with (disk / "ballast").open("wb", buffering=0) as ballast:
                while time.monotonic() < room_at:
                    _fill(ballast)
                    time.sleep(0.02)
            (disk / "ballast").unlink()
        scene.to_its_end()
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


@dataclass(frozen=True)
class Trouble:
    """What is done, and what it takes."""

    act: Act
    ranks: tuple[int, ...] = RANKS  # one of these
    bucket: bool = False  # on an S3 server behind a proxy, instead of in a folder
    nodes: int = 1
    hosts: int = 0  # network namespaces


TROUBLES: dict[str, Trouble] = {
    "signals": Trouble(stopped_by_signals),
    "signals, S3": Trouble(stopped_by_signals, bucket=True),
    "held still": Trouble(held_still),
    "woken too late": Trouble(elsewhere.woken_too_late),
    "damage": Trouble(damaged),
    "damage, S3": Trouble(damaged, bucket=True),
    "started twice": Trouble(started_twice),
    "started twice, S3": Trouble(started_twice, bucket=True),
    "lost client": Trouble(clients.lost_client),
    "clock": Trouble(clock_set_back),
    "full disk": Trouble(full_disk),
    "store": Trouble(store_in_trouble, bucket=True),
    "network": Trouble(elsewhere.cut_from_its_bucket, bucket=True, hosts=1),
    "network of nodes": Trouble(elsewhere.nodes_cut_apart, ranks=(2,), nodes=2, hosts=2),
}


@dataclass
class Maker:
    """Makes trouble for one run after the other."""

    folder: Path
    seed: int
    place: Place
    endpoint: str
    bucket: Callable[..., Place]
    only: str = ""  # this trouble alone
    straight: dict[int, Result] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def one(self, number: int) -> str:
        """One run with its trouble; what was done."""
        name = self.only or self._name(number)
        trouble, dice = TROUBLES[name], random.Random(f"{self.seed} trouble {number}")
        ranks = dice.choice(trouble.ranks)
        expected = self._unbroken(ranks)
        began = time.monotonic()
        try:
            with self._scene(number, ranks, dice, trouble) as scene:
                done = self._made(trouble, scene, expected)
        except (Skipped, NoNetwork) as why:
            done = f"{name}: skipped, {why}"
        self.counts[done] += 1
        where = "on S3" if trouble.bucket else "in a folder"
        return f"trouble {number}: {ranks} ranks {where}, {done}, {time.monotonic() - began:.0f} s"

    def _name(self, number: int) -> str:
        """All of them in every round, each round in another order."""
        turn, place = divmod(number, len(TROUBLES))
        return random.Random(f"{self.seed} round {turn}").sample(sorted(TROUBLES), len(TROUBLES))[place]

    def _made(self, trouble: Trouble, scene: Scene, expected: Result) -> str:
        try:
            done = trouble.act(scene)
            invariants.check(scene.case, expected, scene.commits, hurt=scene.hurt)
        finally:
            scene.case.clean_up()
        shutil.rmtree(scene.case.tmp, ignore_errors=True)
        return done

    @contextmanager
    def _scene(self, number: int, ranks: int, dice: random.Random, trouble: Trouble) -> Iterator[Scene]:
        tmp, place, server, hosts = self.folder / f"trouble-{number}", self.place, None, None
        with ExitStack() as stack:
            if trouble.hosts:
                hosts = stack.enter_context(Hosts(trouble.hosts))
            if trouble.bucket:
                address = {"address": hosts.gateway} if hosts else {}
                server = stack.enter_context(faults.proxy(self.endpoint, **address))
                place = self.bucket(self.endpoint, f"trouble-{self.seed}-{number}", through=server.url)
            yield Scene(self._case(tmp, place, ranks, trouble.nodes), dice, server, hosts)

    def _case(self, tmp: Path, place: Place, ranks: int, nodes: int = 1) -> Case:
        canary = f"canary-{random.Random(tmp.name).getrandbits(64):x}"
        return Case(tmp=tmp, place=place, ranks=ranks, canary=canary, config=dict(CONFIG), nodes=nodes)

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


def _fill(ballast: IO[bytes]) -> None:
    try:
        while True:
            ballast.write(b"x" * 4096)
    except OSError:
        pass  # not a byte more goes in
