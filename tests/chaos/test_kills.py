"""Kills at random moments: whatever dies, and whenever, the run ends with the same bits and a history without gaps.

The short form belongs to the ordinary tests. HEADWAY_CHAOS=200 gives the long one, with that many kills.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.spec import Cadence, Checkpoint, Job, dump
from tests.supervisor import supervised
from tests.training.live import Case, Gang
from tests.waiting import wait_until

pytestmark = pytest.mark.torch

KILLS = int(os.environ.get("HEADWAY_CHAOS", "0"))
CONFIG = {"pause_s": 0.03, "workers": 1}
RULE = Checkpoint(every=Cadence(steps=2), keep_last=2)
LENGTH_S = 18 * 0.03 * 1.5  # of an undisturbed training, with its evaluations


@pytest.fixture(scope="module", name="straight")
def _straight(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Case]:
    cases = {}
    for ranks in (1, 2, 3):
        cases[ranks] = Case(tmp_path_factory.mktemp(f"straight-{ranks}"), ranks=ranks, checkpoint=RULE)
        assert cases[ranks].train() == [0] * ranks, cases[ranks].log()
    return cases


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("seed", range(max(1, KILLS // 20)))
def test_ranks_killed_at_random_moments(tmp_path: Path, straight: dict[int, Case], ranks: int, seed: int) -> None:
    dice = random.Random(f"{ranks} {seed}")
    case = Case(tmp_path, ranks=ranks, config=CONFIG, checkpoint=RULE)
    for _ in range(3):
        group = case.start()
        if dice.random() < 0.8:
            wait_until_begun(case, group)
        time.sleep(dice.uniform(0, LENGTH_S))
        victims = dice.choice([[dice.randrange(ranks)], list(range(ranks))])
        group.kill(dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]), victims)
        group.wait()
    assert case.train() == [0] * ranks, case.log()
    assert case.digest() == straight[ranks].digest()
    assert case.history() == straight[ranks].history()


def wait_until_begun(case: Case, group: Gang) -> None:
    mark = case.folder / f"begun-{case.attempt}-{case.ranks - 1}"
    wait_until(lambda: mark.exists() or not any(process.is_alive() for process in group.processes), case.log)


# -- under the supervisor ---------------------------------------------------------------------------------------------

SCRIPT = """
sys.path.insert(0, os.environ["TEST_ROOT"])
from tests.training import training
training.main({})
"""


@pytest.fixture(name="made")
def _made(tmp_path: Path) -> Iterator[list[supervised.Case]]:
    made: list[supervised.Case] = []
    yield made
    for case in made:
        case.clean_up()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(max(1, KILLS // 5)))
def test_under_the_supervisor_anything_may_be_killed(
    tmp_path: Path, straight: dict[int, Case], made: list[supervised.Case], seed: int
) -> None:
    dice = random.Random(seed)
    ranks = dice.choice([1, 2, 3]) if KILLS else 2
    case = supervised_case(tmp_path, ranks)
    made.append(case)
    supervisor = case.start()
    for _ in range(5 if KILLS else 2):
        attempt = wait_for_progress(case, supervisor)
        time.sleep(dice.uniform(0, LENGTH_S))
        victim = dice.choice(["rank", "rank", "supervisor", "term rank", "term supervisor"])
        if victim.endswith("supervisor"):
            supervisor.send(signal.SIGTERM if victim.startswith("term") else signal.SIGKILL)
            supervisor.ends()
        else:
            kill(
                tmp_path,
                attempt,
                dice.randrange(ranks),
                signal.SIGTERM if victim.startswith("term") else signal.SIGKILL,
            )
        if supervisor.process.poll() is not None:
            supervisor = case.start()
    while supervisor.ends() != 0:
        supervisor = case.start()
    read = Case(tmp_path, ranks=ranks, url=case.url, claimed=True)
    assert read.digest() == straight[ranks].digest()
    assert read.history() == straight[ranks].history()
    wait_until(lambda: not case.left_behind(), lambda: str(case.left_behind()))


def supervised_case(tmp_path: Path, ranks: int) -> supervised.Case:
    job = dump(Job(name="t", script="train.py", config=CONFIG, seed=7, checkpoint=RULE, retries=99))
    case = supervised.make_case(tmp_path, SCRIPT, job=job, processes=ranks, environment={"threads": "1"})
    case.env |= {"TEST_ROOT": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    return case


def wait_for_progress(case: supervised.Case, supervisor: supervised.Supervisor) -> int:
    """The attempt whose ranks have all begun to train, or the newest if the run ends first."""
    marks: list[int] = []

    def begun() -> bool:
        marks[:] = sorted(int(path.name.split("-")[1]) for path in case.tmp.glob("begun-*-0"))
        newest = marks[-1] if marks else 0
        fresh = newest and not (case.tmp / f"hit-{newest}").exists()
        return bool(fresh) or supervisor.process.poll() is not None

    wait_until(begun, case.explain)
    if marks:
        (case.tmp / f"hit-{marks[-1]}").touch()
    return marks[-1] if marks else 0


def kill(tmp_path: Path, attempt: int, rank: int, number: int) -> None:
    mark = tmp_path / f"begun-{attempt}-{rank}"
    if mark.exists():
        try:
            os.kill(int(mark.read_text()), number)
        except ProcessLookupError:
            pass  # it was done before we came
