"""What can be done to runs, by name. Each scenario returns what went wrong; nothing means that nothing did."""

from __future__ import annotations

import math
import random
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.chaos import faults, invariants
from tests.chaos.case import Case, Place
from tests.chaos.invariants import Result
from tests.chaos.kills import Killer, Tally
from tests.chaos.troubles import Maker
from tests.servers import processes

WORLDS = (1, 2, 3, 1, 2, 1)  # how many ranks, in turn: starting one takes seconds of a core, so most runs are small
KILLS_A_RUN = 12


@dataclass
class Settings:
    """One call of the driver."""

    folder: Path
    seed: int
    kills: int
    seconds: float | None = None
    jobs: int = 2
    keep: bool = False
    from_run: int = 0  # the number of each scenario's first run
    trouble: str = ""  # this one alone
    places: list[Place] = field(default_factory=list)
    straight: dict[int, Result] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    end_at: float = math.inf  # of the scenario that is played
    counts: list[str] = field(default_factory=list)  # what was done, for the last line
    missed: list[str] = field(default_factory=list)  # faults whose write never came: how many there are is chance

    @property
    def time_is_up(self) -> bool:
        return time.monotonic() > self.end_at

    def share_time(self, scenarios_left: int) -> None:
        """The next scenario has an equal share of what is left."""
        if self.seconds is not None:
            now = time.monotonic()
            self.end_at = now + (self.began + self.seconds - now) / scenarios_left


def play(settings: Settings, names: list[str]) -> int:
    """The scenarios one after the other; the exit code."""
    wrong: list[str] = []
    with ExitStack() as stack:
        settings.places = stack.enter_context(places(settings.folder))
        for ranks in (1, 2, 3) if "kills" in names else ():
            settings.straight[ranks] = unbroken(settings, ranks)
        for number, name in enumerate(names):
            settings.share_time(len(names) - number)
            began = time.monotonic()
            found = SCENARIOS[name](settings)
            how = f"{len(found)} went wrong" if found else "all is well"
            say(f"{name}: {how}, {time.monotonic() - began:.0f} s")
            wrong += found
    for text in wrong:
        say(text)
    say(f"{', '.join(settings.counts)}: {f'{len(wrong)} went wrong' if wrong else 'nothing was lost'}")
    if not wrong and not settings.keep:
        shutil.rmtree(settings.folder, ignore_errors=True)
    return int(bool(wrong))


@contextmanager
def places(folder: Path) -> Iterator[list[Place]]:
    """A folder, and a bucket of a real S3 server."""
    with processes.moto() as endpoint:
        yield [Place(name="folder", url=str(folder / "runs")), bucket(endpoint)]


def bucket(endpoint: str, name: str = "chaos", *, through: str = "") -> Place:
    """A new bucket. Runs reach it `through` another address, if given; the driver does not."""
    import os
    import urllib.request

    env = {
        "AWS_ACCESS_KEY_ID": "chaos",
        "AWS_SECRET_ACCESS_KEY": "chaos",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
    }
    os.environ.update(env)  # the driver reads the bucket too
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT")).close()
    return Place(name="S3", url=f"s3://{name}/runs", env={**env, "AWS_ENDPOINT_URL": through or endpoint})


def unbroken(settings: Settings, ranks: int) -> Result:
    """What a run of this world size makes when nobody disturbs it."""
    case = make_case(settings, settings.places[0], ranks, f"straight-{ranks}")
    case.start()
    assert case.ends() == 0, case.explain()
    return invariants.check(case, None, [])


def make_case(settings: Settings, place: Place, ranks: int, name: str) -> Case:
    canary = f"canary-{random.Random(name).getrandbits(64):x}"
    return Case(tmp=settings.folder / name, place=place, ranks=ranks, canary=canary)


# -- kills ------------------------------------------------------------------------------------------------------------


def kills(settings: Settings) -> list[str]:
    """Anything killed at any moment: the run ends with the same bits."""
    tally, lock, wrong = Tally(), threading.Lock(), list[str]()
    numbers = iter(range(settings.from_run, 1_000_000))

    def left() -> int:
        return settings.kills - len(tally.hits)

    def worker() -> None:
        while left() > 0 and not settings.time_is_up and not wrong:
            with lock:
                number = next(numbers)
            trouble = one_run(settings, number, tally, min(KILLS_A_RUN, left()))
            if trouble:
                wrong.append(trouble)

    with ThreadPoolExecutor(settings.jobs) as pool:
        for done in [pool.submit(worker) for _ in range(settings.jobs)]:
            done.result()
    settings.counts.append(f"{len(tally.hits)} kills in {tally.runs} runs")
    say(f"{settings.counts[-1]}, seed {settings.seed}")
    for title, counts in (("who", tally.by(lambda hit: hit.kind)), ("where", tally.by(lambda hit: hit.found))):
        say(f"  {title}: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    return wrong


def one_run(settings: Settings, number: int, tally: Tally, most: int) -> str:
    """One run with its kills; what went wrong with it, or nothing."""
    ranks = WORLDS[number % len(WORLDS)]
    place = settings.places[(number // len(WORLDS) + number) % len(settings.places)]
    case = make_case(settings, place, ranks, f"kills-{number}")
    killer = Killer(case, f"{settings.seed} {number}", tally)
    began = time.monotonic()
    try:
        done = killer.run(most)
        invariants.check(case, settings.straight[ranks], killer.commits)
    except Exception as error:  # noqa: BLE001  reported with everything that is needed to find the cause
        case.clean_up()
        hits = "\n".join(map(str, tally.hits[-6:]))
        return f"run {number} ({ranks} ranks, {place.name}, {case.tmp}): {error!r}\n{hits}\n{traceback.format_exc()}"
    tally.runs += 1
    attempts = len(case.events("attempt"))
    files, size = invariants.orphans(case)
    say(
        f"run {number}: {ranks} ranks on {place.name}, {done} kills, {attempts} attempts, "
        f"{time.monotonic() - began:.0f} s, {files} files ({size >> 10} KiB) of no checkpoint"
    )
    if not settings.keep:
        shutil.rmtree(case.tmp, ignore_errors=True)
    return ""


# -- faults -----------------------------------------------------------------------------------------------------------


def every_write(settings: Settings) -> list[str]:
    """Each write of a short run failed in turn: at rank 0 and the supervisor, and at the second of two ranks."""
    straight, jobs = {}, []
    for ranks in (1, 2):
        case = faults.short_case(settings.folder / f"counted-{ranks}", settings.places[0], ranks)
        faults.run_to_its_end(case)
        straight[ranks] = invariants.check(case, None, [])
        for role, number, _ in faults.writes_of(case):
            if ranks == 1 or role == "rank1":
                jobs += [(ranks, {"role": role, "number": number, "kind": kind}) for kind in ("lost", _kind(number))]

    def one(job: tuple[int, dict[str, Any]]) -> str:
        ranks, fault = job
        name = "-".join(["fault", *map(str, fault.values())])
        case = faults.short_case(settings.folder / name, settings.places[0], ranks, fault=fault)
        return attempted(settings, case, lambda: _survive_fault(settings, case, straight[ranks]))

    return in_turn(settings, one, jobs, "writes failed")


def _kind(number: int) -> str:
    return ("transient", "full", "denied")[number % 3]


def _survive_fault(settings: Settings, case: Case, straight: Result) -> None:
    faults.run_to_its_end(case)
    invariants.check(case, straight, [])
    if faults.was_struck(case):
        faults.assert_the_error_was_seen(case)
    else:
        settings.missed.append(case.tmp.name)


def every_upload(settings: Settings) -> list[str]:
    """Each PUT of a short run on S3 refused, or its answer lost, in turn, by a proxy in front of the server."""
    endpoint = settings.places[1].env["AWS_ENDPOINT_URL"]
    straight: list[Result] = []
    with faults.proxy(endpoint) as server:
        case = faults.short_case(settings.folder / "counted-s3", bucket(endpoint, "counted", through=server.url))
        faults.run_to_its_end(case)
        straight.append(invariants.check(case, None, []))
        count = sum(request.method == "PUT" for request in server.requests)

    def one(number: int) -> str:
        kind = ("refuse", "drop", "lose")[number % 3]
        with faults.proxy(endpoint) as server:
            fault = faults.Nth(kind=kind, status=403 if kind == "refuse" else 500, method="PUT", number=number)
            fault.body = faults.REFUSAL if kind == "refuse" else b""
            place = bucket(endpoint, f"upload-{number}", through=server.url)
            case = faults.short_case(settings.folder / f"upload-{number}-{kind}", place)
            server.faults.append(fault)
            return attempted(settings, case, lambda: _survive_refusal(settings, case, straight[0], fault))

    return in_turn(settings, one, list(range(1, count + 1)), "uploads failed")


def _survive_refusal(settings: Settings, case: Case, straight: Result, fault: faults.Nth) -> None:
    faults.run_to_its_end(case)
    invariants.check(case, straight, [])
    if not fault.key:
        settings.missed.append(case.tmp.name)
    elif fault.kind == "refuse":  # a lost answer is a hiccup that the store itself makes good
        faults.assert_the_error_was_seen(case, faults.DENIED)


# -- troubles ---------------------------------------------------------------------------------------------------------


def troubles(settings: Settings) -> list[str]:
    """One trouble a run, all kinds in turn: as many runs as the time allows, or a fifth of the kills asked for."""
    endpoint = settings.places[1].env["AWS_ENDPOINT_URL"]
    maker = Maker(settings.folder, settings.seed, settings.places[0], endpoint, bucket, settings.trouble)
    most = 1_000_000 if settings.seconds is not None else max(1, settings.kills // 5)
    done, wrong = 0, list[str]()
    for number in range(settings.from_run, settings.from_run + most):
        if settings.time_is_up or wrong:
            break
        try:
            say(maker.one(number))
            done += 1
        except Exception as error:  # noqa: BLE001  reported with everything that is needed to find the cause
            wrong.append(f"trouble {number} of seed {settings.seed}: {error!r}\n{traceback.format_exc()}")
    settings.counts.append(f"{done} runs in trouble")
    say(
        f"{done} runs in trouble, seed {settings.seed}: " + ", ".join(f"{n} {what}" for what, n in maker.counts.items())
    )
    return wrong


def attempted(settings: Settings, case: Case, work: Callable[[], None]) -> str:
    """What went wrong, with everything that is needed to find the cause; or nothing."""
    try:
        work()
    except Exception as error:  # noqa: BLE001  reported, and ends with a failure
        case.clean_up()
        return f"{case.tmp}: {error!r}\n{traceback.format_exc()}"
    if not settings.keep:
        shutil.rmtree(case.tmp, ignore_errors=True)
    return ""


Job = TypeVar("Job")


def in_turn(settings: Settings, one: Callable[[Job], str], jobs: list[Job], what: str) -> list[str]:
    """Each job in a run of its own, as far as the time goes; says how many of them there were."""

    def attempt(job: Job) -> str | None:
        return None if settings.time_is_up else one(job)

    settings.missed.clear()
    with ThreadPoolExecutor(settings.jobs) as pool:
        told = [text for text in pool.map(attempt, jobs[settings.from_run :]) if text is not None]
    wrong = [text for text in told if text]
    first = f" from number {settings.from_run}" if settings.from_run else ""
    missed = f", {len(settings.missed)} of them never came" if settings.missed else ""
    settings.counts.append(f"{len(told)} of {len(jobs)} {what}{first}{missed}")
    say(f"{settings.counts[-1]}, each in a run of its own, {len(wrong)} runs with trouble")
    return wrong


def say(text: str) -> None:
    print(text, flush=True)


SCENARIOS: dict[str, Callable[[Settings], list[str]]] = {
    "kills": kills,
    "troubles": troubles,
    "uploads": every_upload,
    "writes": every_write,
}
