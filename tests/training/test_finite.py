"""A loss, a gradient or a weight that is not finite: never applied where it is seen in time, and never kept."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway.core.errors import RunFailed
from headway.spec import Cadence, Checkpoint
from headway.training import Loader, optim
from headway.training.checkpoint.serialization import flatten
from headway.training.nonfinite import WeightCheck
from headway.training.run import Run
from tests.training.inside import Start, runs
from tests.training.test_run import Line, Numbers, history, weights

NAN, INF = float("nan"), float("inf")
EVERY_STEP = Checkpoint(every=Cadence(steps=1), keep_last=9)
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1, amsgrad=True),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.2),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.1, momentum=0.5, centered=True),
    "foreach": lambda parameters: torch.optim.Adam(parameters, lr=0.1, foreach=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
}


@pytest.fixture(name="start")
def _start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    yield from runs(tmp_path, monkeypatch)


@pytest.fixture(params=["cpu", "accelerator"])
def branch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An accelerator's check leaves its result on the device; so does this one."""
    if request.param == "accelerator":
        monkeypatch.setattr(optim, "nonfinite_loss", lambda loss: (~torch.isfinite(loss.detach())).float())
    return str(request.param)


class Paper:
    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def write(self, folder: Path) -> None:
        (folder / "weights.txt").write_text(str(weights(self.model).tolist()))


def train(
    run: Run,
    optimizer: torch.optim.Optimizer,
    feed: Loader,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    *,
    epochs: int = 2,
    after_epoch: Callable[[int], None] = lambda epoch: None,
) -> None:
    for epoch in run.epochs(epochs):
        for x, y in run.steps(feed):
            run.step(optimizer, loss_sum=loss_of(x, y), weight=len(x))
        after_epoch(epoch)


def bytes_of(*things: Any) -> list[tuple[str, bytes]]:
    _, tensors = flatten({str(number): thing.state_dict() for number, thing in enumerate(things)})
    return [(name, value.contiguous().numpy().tobytes()) for name, value in sorted(tensors.items())]


def checkpoints(tmp_path: Path) -> list[int]:
    return sorted(int(path.parent.name) for path in tmp_path.glob("run/checkpoints/*/manifest.json"))


def pointers(tmp_path: Path) -> dict[str, int]:
    return {p.stem: json.loads(p.read_text())["step"] for p in tmp_path.glob("run/checkpoints/*.json")}


# -- a loss -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_bad_loss_stops_the_run_at_its_own_step_without_being_applied(
    start: Start, branch: str, tmp_path: Path, accumulate: int
) -> None:
    run = start(config={"accumulate": accumulate}, checkpoint=Checkpoint(every=Cadence(steps=2)))
    model = run.place(Line())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    feed = Loader(Numbers(bad=13), 5, shuffle=False)
    run.restore(model=model, optimizer=optimizer, data=feed)
    before: dict[int, Any] = {}

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        before.setdefault(run.global_step, bytes_of(model, optimizer))
        return ((model(x) - y) ** 2).sum()

    with pytest.raises(RunFailed, match="13"):
        train(run, optimizer, feed, loss_of)
    assert run.global_step == 2
    assert bytes_of(model, optimizer) == before[2]
    run._boundary.close()
    assert checkpoints(tmp_path) == [2]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_skipped_step_leaves_weights_and_optimizer_state_as_they_were(
    start: Start, branch: str, tmp_path: Path, kind: str
) -> None:
    run = start(config={"nan": "skip"}, checkpoint=EVERY_STEP)
    model = run.place(nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
    optimizer = OPTIMIZERS[kind](model.parameters())
    average = run.average(model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    feed = Loader(Numbers(bad=13), 5, shuffle=False)
    run.restore(model=model, optimizer=optimizer, schedule=schedule, data=feed)
    skipped = 0
    for _ in run.epochs(2):
        before, rate = bytes_of(model, optimizer, average), schedule.state_dict()
        for place, (x, y) in enumerate(run.steps(feed)):
            if place == 3:  # the batch before was the bad one
                assert bytes_of(model, optimizer, average) == before
                assert schedule.state_dict() == rate
                skipped += 1
            before, rate = bytes_of(model, optimizer, average), copy.deepcopy(schedule.state_dict())
            stepped = run.step(
                optimizer, loss_sum=((model(x) - y) ** 2).sum(), weight=len(x), scheduler=schedule, clip=1.0
            )
            run.log(loss=1.0)
            assert stepped == (place != 2)
    run.finish(Paper(model))
    assert (skipped, run.global_step) == (2, 6)
    assert [record["step"] for record in history(run)] == [1, 2, 3, 4, 5, 6]
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())
    assert "nan" not in (tmp_path / "run/export/weights.txt").read_text()


def test_a_bad_first_step_leaves_the_optimizer_without_a_state(start: Start, branch: str) -> None:
    run = start(config={"nan": "skip"})
    model = run.place(Line())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in run.steps(Loader(Numbers(bad=0), 5, shuffle=False)):
        run.step(((model(x) - y) ** 2).sum(), optimizer)
        if run.global_step == 0:
            assert not optimizer.state
    assert run.global_step == 3


def test_losses_that_are_never_finite_end_the_run_also_on_an_accelerator(start: Start, branch: str) -> None:
    run = start(config={"nan": "skip"})
    model = run.place(Line())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RunFailed, match="11 batches in a row"):
        train(run, optimizer, Loader(Numbers(), 6), lambda x, y: model(x).sum() * NAN, epochs=9)
    assert torch.isfinite(weights(model)).all()


@pytest.mark.parametrize("policy", ["stop", "skip"])
@pytest.mark.parametrize("manual", [False, True], ids=["step", "backward-update"])
def test_a_gradient_scaler_does_not_hide_a_bad_loss(start: Start, branch: str, policy: str, manual: bool) -> None:
    run = start(config={"precision": "fp16", "nan": policy})
    model = run.place(Line())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    feed = Loader(Numbers(bad=13), 5, shuffle=False)
    run.restore(model=model, optimizer=optimizer, data=feed)
    scaler = run._precision.scaler
    assert scaler is not None
    applied: list[bool] = []

    def one_epoch() -> None:
        for x, y in run.steps(feed):
            before, scale = bytes_of(model, optimizer), scaler.get_scale()
            with run.autocast():
                loss = (model(x) - y).square().mean()
            if manual:
                run.backward(loss)
            applied.append(run.update(optimizer) if manual else run.step(loss, optimizer))
            if not applied[-1]:
                assert (bytes_of(model, optimizer), scaler.get_scale()) == (before, scale)

    if policy == "stop":
        with pytest.raises(RunFailed, match="13"):
            one_epoch()
        assert applied == [True, True]
    else:
        one_epoch()
        assert applied == [True, True, False, True]


# -- a gradient -------------------------------------------------------------------------------------------------------


def _score(run: Run, epoch: int) -> None:
    run.score({"accuracy": float(epoch)}, best="accuracy")


def spoil_at(run: Run, model: Line, step: int, x: Tensor) -> Tensor:
    """A finite loss; at this step with a gradient that is not: the root of zero."""
    loss = model(x).square().sum()
    return loss + (model.rise * 0).sum().sqrt() if run.global_step + 1 == step else loss


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_bad_gradient_of_a_finite_loss_reaches_no_checkpoint(
    start: Start, branch: str, tmp_path: Path, policy: str
) -> None:
    run = start(config={"nan": policy}, checkpoint=EVERY_STEP)
    model = run.place(Line())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    feed = Loader(Numbers(), 5)
    run.restore(model=model, optimizer=optimizer, data=feed)
    with pytest.raises(RunFailed, match=r"model\.rise contains NaN") as failure:
        train(run, optimizer, feed, lambda x, y: spoil_at(run, model, 3, x))
    assert "step 3" in str(failure.value)
    run._boundary.close()
    assert checkpoints(tmp_path)[-1] == 2
    assert pointers(tmp_path)["last"] == 2
    again = start(config={"nan": policy}, checkpoint=EVERY_STEP)
    model = again.place(Line())
    assert again.restore(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data=feed) == 2
    assert torch.isfinite(weights(model)).all()


def test_weights_spoiled_by_an_epochs_last_step_are_not_the_best(start: Start, tmp_path: Path) -> None:
    run = start()
    model = run.place(Line())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    feed = Loader(Numbers(), 5)
    run.restore(model=model, optimizer=optimizer, data=feed)
    scored = partial(_score, run)
    with pytest.raises(RunFailed, match="contains NaN"):
        train(run, optimizer, feed, lambda x, y: spoil_at(run, model, 8, x), after_epoch=scored)
    run._boundary.close()
    assert checkpoints(tmp_path) == [4]
    assert pointers(tmp_path) == {"best": 4, "last": 4}


def test_weights_spoiled_during_an_evaluation_are_not_the_best(start: Start, tmp_path: Path) -> None:
    run = start()
    model = run.place(Line())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    feed = Loader(Numbers(), 5)
    run.restore(model=model, optimizer=optimizer, data=feed)

    def after_epoch(epoch: int) -> None:
        _score(run, epoch)
        if epoch:
            nn.init.constant_(model.rise, INF)

    with pytest.raises(RunFailed, match="contains infinity"):
        train(run, optimizer, feed, lambda x, y: model(x).square().sum(), after_epoch=after_epoch)
    run._boundary.close()
    assert pointers(tmp_path) == {"best": 4, "last": 4}


# -- an export --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restored", [True, False])
def test_weights_that_are_not_finite_are_not_exported(start: Start, tmp_path: Path, restored: bool) -> None:
    run = start()
    model = run.place(Line())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    feed = Loader(Numbers(), 5)
    if restored:
        run.restore(model=model, optimizer=optimizer, data=feed)
    for _ in run.epochs(1):
        for x, _ in run.steps(feed):
            run.step(model(x).square().sum(), optimizer)
    nn.init.constant_(model.rise, NAN)
    with pytest.raises(RunFailed, match=r"rise contains NaN"):
        run.finish(Paper(model))
    run._boundary.close()
    assert not (tmp_path / "run/export").exists()


def test_the_best_of_a_run_is_exported_finite_or_not_at_all(start: Start, tmp_path: Path) -> None:
    run = start()
    model = run.place(Line())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    feed = Loader(Numbers(), 5)
    run.restore(model=model, optimizer=optimizer, data=feed)

    def bundle() -> Paper:
        nn.init.constant_(model.rise, NAN)
        return Paper(model)

    run.on_export(bundle)
    for _ in run.epochs(1):
        for x, _ in run.steps(feed):
            run.step(model(x).square().sum(), optimizer)
        run.score({"accuracy": 1.0}, best="accuracy")
    with pytest.raises(RunFailed, match=r"rise contains NaN"):
        run.finish()
    assert not (tmp_path / "run/export").exists()


# -- what a model may hold --------------------------------------------------------------------------------------------


class Masked(Line):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([0.0, -INF]))
        self.register_buffer("unset", torch.tensor([NAN]))
        self.register_buffer("lowest", torch.zeros(1))
        self.frozen = nn.Parameter(torch.tensor([-INF]), requires_grad=False)
        self.large = nn.Parameter(torch.full((4,), 3e38))


def test_what_a_model_held_when_it_was_made_is_its_own_business(start: Start, tmp_path: Path) -> None:
    for attempt in range(2):
        run = start(checkpoint=EVERY_STEP)
        model = run.place(Masked())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        feed = Loader(Numbers(), 5)
        run.restore(model=model, optimizer=optimizer, data=feed)
        for _ in run.epochs(attempt + 1):
            for x, _ in run.steps(feed):
                nn.init.constant_(model.lowest, INF)
                run.step(model(x).square().sum(), optimizer)
        run.finish(Paper(model))
    assert checkpoints(tmp_path)[-1] == 8


def test_a_buffer_may_become_infinite_and_not_nan() -> None:
    model = Masked()
    check = WeightCheck([], {"model": model})
    check.exempt_existing(model, "model")
    assert check.find_nonfinite() is None
    nn.init.constant_(model.lowest, -INF)
    assert check.find_nonfinite() is None
    model.lowest = torch.tensor([NAN])
    assert check.find_nonfinite() == ("model.lowest", "NaN")


def test_an_average_must_be_finite_and_half_precision_is_looked_at(start: Start) -> None:
    run = start()
    model = run.place(Line())
    average = run.average(model)
    check = WeightCheck([], {"average_1": average, "half": nn.Linear(2, 2).to(torch.bfloat16)})
    assert check.find_nonfinite() is None
    average.weights["rise"].fill_(INF)
    assert check.find_nonfinite() == ("average_1.rise", "infinity")
