"""The two forms of run.step, how each is weighed, and what counts as a step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headway.core.errors import BadInput
from headway.training import Loader
from headway.training.progress_state import TrainState
from headway.training.run import Run
from tests.training.inside import Start, runs
from tests.training.live import Case
from tests.training.training import Points


@pytest.fixture(name="start")
def _start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    yield from runs(tmp_path, monkeypatch)


def parts_of(run: Run | None = None) -> tuple[nn.Linear, torch.optim.SGD, Loader]:
    """A model, its optimizer, and 46 points in batches of 8: the last one has 6."""
    torch.manual_seed(5)
    model = nn.Linear(6, 1)
    if run is not None:
        run.place(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.05), Loader(Points(), 8, shuffle=False, seed=7)


def mean_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x).squeeze(-1), y)


def bare(epochs: int = 2) -> Tensor:
    """A loop without Headway."""
    model, optimizer, feed = parts_of()
    for epoch in range(epochs):
        for step in range(len(feed)):
            x, y = feed.batch(epoch, step, 0, 1)
            optimizer.zero_grad()
            mean_loss(model, x, y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def trained(run: Run) -> Tensor:
    model, optimizer, feed = parts_of(run)
    for _ in run.epochs(2):
        for x, y in run.steps(feed):
            run.step(mean_loss(model, x, y), optimizer)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_a_mean_loss_trains_as_in_a_bare_loop_to_the_bit(start: Start) -> None:
    assert torch.equal(trained(start()), bare())


def test_means_of_unequal_micro_batches_give_the_mean_over_the_batch(start: Start) -> None:
    assert torch.allclose(trained(start(config={"accumulate": 4})), bare(), atol=1e-6)  # 6 points: 2, 2, 1, 1


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_means_of_unequal_ranks_give_the_mean_over_the_batch(tmp_path: Path, ranks: int) -> None:
    case = Case(tmp_path, ranks=ranks)
    assert case.train(TEST_OPTIONS=json.dumps({"loop": "mean_loss"})) == [0] * ranks, case.log()
    found = [torch.load(tmp_path / f"weights-{rank}.pt") for rank in range(ranks)]
    assert all(torch.equal(found[0], other) for other in found)
    assert torch.allclose(found[0], bare(), atol=1e-6)


def test_a_loss_together_with_a_weight_is_refused_and_both_forms_are_named(start: Start) -> None:
    run = start()
    model, optimizer, feed = parts_of(run)
    before = model.weight.detach().clone()
    for x, y in run.steps(feed):
        with pytest.raises(BadInput, match="mean or a sum") as refused:
            run.step(mean_loss(model, x, y), optimizer, weight=len(x))  # type: ignore[call-overload]
        break
    assert "run.step(loss, optimizer)" in str(refused.value)
    assert "run.step(optimizer, loss_sum=loss, weight=count)" in str(refused.value)
    assert torch.equal(model.weight, before)


def test_half_a_form_is_refused(start: Start) -> None:
    run = start()
    _, optimizer, _ = parts_of(run)
    loss = torch.zeros((), requires_grad=True)
    with pytest.raises(BadInput, match="without weight="):
        run.step(optimizer, loss_sum=loss)  # type: ignore[call-overload]
    with pytest.raises(BadInput, match="a loss and loss_sum="):
        run.step(loss, optimizer, loss_sum=loss, weight=1)  # type: ignore[call-overload]
    with pytest.raises(BadInput, match="no optimizer"):
        run.step(loss)  # type: ignore[call-overload]
    with pytest.raises(BadInput, match="no loss"):
        run.step(optimizer)  # type: ignore[call-overload]


def test_a_step_is_a_batch_however_many_optimizers_it_updates(start: Start) -> None:
    run = start()
    model, first, feed = parts_of(run)
    second = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = []
    for x, y in run.steps(feed):
        run.step(mean_loss(model, x, y), first)
        seen.append(run.global_step)
        run.step(mean_loss(model, x, y), second)
        seen.append(run.global_step)
    assert seen == [number for step in range(1, len(feed) + 1) for number in (step, step)]
    assert run._checkpoints.position.updates == 2 * len(feed)


def test_an_older_checkpoint_whose_steps_were_updates_keeps_its_random_numbers() -> None:
    older = TrainState(step=16, batch=8)
    assert older.updates == 16
    assert "updates" not in older.as_dict()
    older.count_update(same_step=False)
    older.count_update(same_step=True)
    assert (older.step, older.updates) == (17, 18)
    assert TrainState(**older.as_dict()).updates == 18  # type: ignore[arg-type]
