"""Memory that ran out: a hint, and on request the same training in smaller pieces."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.core.errors import BadInput
from headway.spec import Cadence, Checkpoint, Job, dump
from headway.training.accumulation import MicroBatching, out_of_memory_hint
from headway.training.run import Run
from tests.supervisor import supervised
from tests.training.inside import Start, runs

# A batch of 16 on one rank. Whatever is larger than a quarter of it asks torch for more memory than there is.
SCRIPT = """
sys.path.insert(0, os.environ["TEST_ROOT"])
import torch
import headway
from headway.runtime import Loader
from tests.training.training import Points

run = headway.start()
feed = Loader(Points(48), 16)
model = run.place(torch.nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run.restore(model=model, optimizer=optimizer, data=feed)
for _ in run.epochs(2):
    for x, y in run.steps(feed):
        if run.global_step == 4 and len(x) > int(os.environ["TEST_ROOM"]):
            torch.empty(1 << 60)
        loss = ((model(x).squeeze(-1) - y) ** 2).sum()
        run.step(optimizer, loss_sum=loss, weight=len(x))
        run.log(loss=loss / len(x))
run.finish()
"""


@pytest.fixture(name="make")
def _make(tmp_path: Path) -> Iterator[Callable[..., supervised.Case]]:
    makers = supervised.cases(tmp_path)
    make = next(makers)

    def started(room: int, **job: Any) -> supervised.Case:
        asked = Job(name="t", script="train.py", seed=7, checkpoint=Checkpoint(every=Cadence(steps=2)), **job)
        case = make(SCRIPT, name=f"run-{room}", job=dump(asked), environment={"threads": "1"})
        case.env |= {"TEST_ROOT": str(Path(__file__).parents[2]), "TEST_ROOM": str(room)}
        return case

    yield started
    next(makers, None)


@pytest.mark.slow
def test_batches_are_cut_finer_until_they_fit_and_training_is_the_same(make: Callable[..., supervised.Case]) -> None:
    roomy, tight = (make(room, config={"accumulate": "auto"}, retries=0) for room in (16, 4))
    assert roomy.run() == 0, roomy.explain()
    assert tight.run() == 0, tight.explain()
    restarts = tight.events("restart")
    assert [event["reason"].rpartition(" in ")[2] for event in restarts] == ["2 micro-batches", "4 micro-batches"]
    assert [event["step"] for event in tight.events("restored")] == [4, 4]
    losses = [{record["step"]: record["loss"] for record in case.folder.metrics()} for case in (roomy, tight)]
    assert losses[0].keys() == losses[1].keys() == set(range(1, 7))
    assert all(math.isclose(losses[0][step], losses[1][step], rel_tol=1e-5) for step in losses[0])


@pytest.mark.slow
def test_without_being_asked_nothing_is_cut(make: Callable[..., supervised.Case]) -> None:
    case = make(8, retries=0)
    assert case.run() == 1
    assert not case.events("restart")
    assert any("--set accumulate=2" in line for line in case.log())


def test_running_out_of_memory_says_what_to_change() -> None:
    assert "accumulate" in out_of_memory_hint(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert out_of_memory_hint(RuntimeError("shape mismatch")) == ""


def test_the_cut_ends_somewhere() -> None:
    short = MemoryError()
    assert MicroBatching({"accumulate": "auto"}, {"HEADWAY_PARTS": "4"}).next_count(short) == 8
    assert MicroBatching({}, {"HEADWAY_ACCUMULATE": "auto"}).next_count(short) == 2
    assert MicroBatching({"accumulate": "auto"}, {"HEADWAY_PARTS": "256"}).next_count(short) is None
    assert MicroBatching({"accumulate": "auto"}, {}).next_count(RuntimeError("shape mismatch")) is None
    assert MicroBatching({"accumulate": 2}, {"HEADWAY_PARTS": "4"}).next_count(short) is None


@pytest.mark.parametrize("asked", [0, "many", -1, [2]])
def test_a_cut_that_is_none_is_bad_input(asked: object) -> None:
    with pytest.raises(BadInput, match="accumulate"):
        MicroBatching({"accumulate": asked}, {})


def test_what_cannot_be_cut_is_not_cut_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: Iterator[Start] = runs(tmp_path, monkeypatch)
    run: Run = next(starts)(config={"accumulate": "auto"})
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 1)), batch_size=2)
    with pytest.raises(BadInput, match="auto cannot split the batches of a DataLoader"):
        next(run.steps(loader))
    starts.close()  # type: ignore[attr-defined]
