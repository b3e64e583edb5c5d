"""A script that nobody changed, run by a real supervisor: its folder holds progress and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.core.plan import BEGINNING, EXACT
from headway.rundir.history import Curves
from tests.supervisor.supervised import Case, cases, wait_until

Make = Callable[..., Case]
TQDM = """
from tqdm import trange
for epoch in range(2):
    bar = trange(100, desc=f"Epoch {epoch + 1}/2", mininterval=0)
    for step in bar:
        bar.set_postfix(loss=1 / (step + 1))
    bar.close()
    print(f"epoch {epoch + 1}/2 val_loss={0.5 - epoch / 10}", flush=True)
    if epoch == 0:
        mark("half")
        wait("go")
"""


@pytest.fixture(name="make")
def _make(tmp_path: Path) -> Iterator[Make]:
    yield from cases(tmp_path)


def curve(case: Case, name: str) -> list[tuple[float, float]]:
    curves = Curves(case.folder)
    curves.refresh()
    return list(zip(curves[name].steps, curves[name].values, strict=True))


@pytest.mark.slow
def test_the_bars_of_tqdm_are_progress_while_it_runs_and_curves_afterwards(make: Make) -> None:
    case = make(TQDM)
    supervisor = case.start()
    case.marked("half")
    wait_until(lambda: (case.folder.progress() or {}).get("step") == 100, case.explain)
    progress = case.folder.progress() or {}
    assert (progress["steps"], progress["epoch"], progress["epochs"], progress["attempt"]) == (200, 0, 2, 1)
    assert progress["rate"] > 0
    case.mark("go")
    assert supervisor.ends() == 0
    assert curve(case, "val_loss") == [(100.0, 0.5), (200.0, 0.4)]
    assert curve(case, "loss")[-1] == (200.0, 0.01)
    assert (case.folder.progress() or {})["step"] == 200
    assert len(case.log()) == 4


@pytest.mark.slow
def test_event_files_below_the_working_folder_are_curves(make: Make) -> None:
    pytest.importorskip("tensorboardX")
    case = make("""
        from tensorboardX import SummaryWriter
        with SummaryWriter("runs/first") as writer:
            for step in range(5):
                writer.add_scalar("train/loss", step / 4, step)
    """)
    assert case.run() == 0, case.explain()
    assert curve(case, "train/loss") == [(float(step), step / 4) for step in range(5)]


def test_an_empty_list_switches_reading_off(make: Make) -> None:
    case = make("print('epoch 1/2 loss=0.5')", job={"metrics": []})
    assert case.run() == 0
    assert case.folder.progress() is None
    assert case.folder.metrics() == []


def test_a_pattern_of_the_job_is_read(make: Make) -> None:
    case = make("print('at 7: reward +1.5')", job={"metrics": [r"at (?P<step>\d+): reward (?P<reward>[-+0-9.e]+)"]})
    assert case.run() == 0
    assert curve(case, "reward") == [(7.0, 1.5)]


@pytest.mark.slow
def test_a_script_that_reports_by_itself_is_not_read(make: Make) -> None:
    case = make("""
        control(progress={"step": 3, "steps": 9}, step=3)
        wait("seen")
        print("epoch 1/2 loss=0.5")
    """)
    supervisor = case.start()
    wait_until(case.folder.progress, "the report is seen")
    case.mark("seen")
    assert supervisor.ends() == 0
    assert (case.folder.progress() or {})["steps"] == 9
    assert case.folder.metrics() == []
    known = make("print('epoch 1/2 loss=0.5')", name="exact", resume=EXACT)
    assert known.run() == 0
    assert known.folder.metrics() == []


def test_a_script_that_starts_from_the_beginning_starts_its_curves_again(make: Make) -> None:
    case = make(
        """
        steps = 5 if ATTEMPT == 1 else 2
        for step in range(1, steps + 1):
            print(f"step {step} loss={ATTEMPT * step}")
        sys.exit(1 if ATTEMPT == 1 else 0)
        """,
        resume=BEGINNING,
    )
    assert case.run() == 0, case.explain()
    assert curve(case, "loss") == [(1.0, 2.0), (2.0, 4.0)]
    assert [record["step"] for record in case.folder.metrics()] == [1, 2]


def test_a_script_that_resumes_continues_its_curves(make: Make) -> None:
    case = make("""
        for step in range(1, 5) if ATTEMPT == 1 else range(3, 7):
            print(f"step {step} loss={ATTEMPT * step}")
        sys.exit(1 if ATTEMPT == 1 else 0)
    """)
    assert case.run() == 0, case.explain()
    assert curve(case, "loss") == [(1, 1), (2, 2), (3, 6), (4, 8), (5, 10), (6, 12)]
