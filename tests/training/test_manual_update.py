"""run.backward and run.update: loops that run.step cannot express train as they do without Headway."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway.core.errors import BadInput, RunFailed
from headway.spec import Cadence, Checkpoint
from headway.training import Loader
from headway.training.preemption import Stop
from headway.training.run import Run
from tests.training.inside import Start, runs
from tests.training.live import Case
from tests.training.training import Points

EVERY_STEP = Checkpoint(every=Cadence(steps=1))


@pytest.fixture(name="start")
def _start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    yield from runs(tmp_path, monkeypatch)


class Sam(torch.optim.SGD):
    """Sharpness-aware minimization: climbs along the gradient, evaluates the closure there, returns and descends."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        climbs = [0.05 * p.grad / (p.grad.norm() + 1e-12) for p in parameters]
        for parameter, climb in zip(parameters, climbs, strict=True):
            parameter.add_(climb)
        assert closure is not None
        self.zero_grad()
        with torch.enable_grad():
            closure()
        for parameter, climb in zip(parameters, climbs, strict=True):
            parameter.sub_(climb)
        return super().step()


def made() -> tuple[nn.Sequential, Loader]:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), Loader(Points(), 8, shuffle=False, seed=7)


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return nn.functional.mse_loss(model(x).squeeze(-1), y)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, lr=0.2, max_iter=3, line_search_fn="strong_wolfe"),
    "sam": lambda parameters: Sam(parameters, lr=0.05),
}


def with_closures(name: str, run: Run | None) -> Tensor:
    """Train with an optimizer that takes a closure; without a run, as a bare loop."""
    model, feed = made()
    if run is not None:
        run.place(model)
    optimizer = OPTIMIZERS[name](model.parameters())

    def update(batch: Any) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward() if run is None else run.backward(loss)  # type: ignore[no-untyped-call]
            return loss

        if name == "sam":
            closure()
        if run is None:
            optimizer.step(closure)
            optimizer.zero_grad()
        else:
            assert run.update(optimizer, closure=closure)

    if run is None:
        for step in range(len(feed)):
            update(feed.batch(0, step, 0, 1))
    else:
        for batch in run.steps(feed):
            update(batch)
    return flat(model)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_with_a_closure_trains_as_in_a_bare_loop_to_the_bit(start: Start, name: str) -> None:
    run = start()
    assert torch.equal(with_closures(name, run), with_closures(name, None))
    assert run.global_step == 6


def test_two_optimizers_are_updated_from_one_loss(start: Start) -> None:
    run = start()
    (model, feed), (bare, _) = made(), made()
    run.place(model)
    ours = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (model[0], model[2])]
    plain = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (bare[0], bare[2])]
    for step, batch in enumerate(run.steps(feed)):
        loss = loss_of(model, batch)
        run.backward(loss, retain_graph=True)
        run.backward(0.1 * loss)
        assert run.update(ours[0])
        assert model[0].weight.grad is None
        assert model[2].weight.grad is not None
        run.backward(torch.zeros((), requires_grad=True).sum())
        assert run.update(ours[1])
        batch = feed.batch(0, step, 0, 1)
        (1.1 * loss_of(bare, batch)).backward()  # type: ignore[no-untyped-call]
        for one in plain:
            one.step()
            one.zero_grad()
    assert run.global_step == len(feed)
    assert torch.allclose(flat(model), flat(bare), atol=1e-6)


def accumulated(run: Run, stop: int | None = None) -> tuple[Tensor, list[float]]:
    """Two batches per update, with random numbers in the model."""
    model, feed = made()
    run.place(model)
    optimizer, drawn = torch.optim.Adam(model.parameters(), lr=0.05), []
    run.restore(model=model, optimizer=optimizer, data=feed)
    for _ in run.epochs(2):
        for x, y in run.steps(feed):
            drawn.append(float(torch.rand(())))
            run.backward(loss_of(model, (nn.functional.dropout(x, 0.2), y)) / 2)
            if len(drawn) == stop:
                os.kill(os.getpid(), signal.SIGTERM)
            if run._checkpoints.position.batch % 2 == 1:
                run.update(optimizer, clip=1.0)
    run.finish()
    return flat(model), drawn


def test_a_run_is_stopped_only_where_no_gradients_wait(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = next(runs(tmp_path / "straight", monkeypatch))
    expected, drawn = accumulated(straight(checkpoint=EVERY_STEP))
    assert len(set(drawn)) == len(drawn) == 12, "every batch has random numbers of its own"
    with pytest.raises(Stop):
        accumulated(start(checkpoint=EVERY_STEP), stop=3)
    run = start(checkpoint=EVERY_STEP)
    found, rest = accumulated(run)
    assert rest == drawn[4:]
    assert torch.equal(found, expected)


def test_gradients_that_would_be_lost_or_mixed_are_refused(start: Start) -> None:
    run = start()
    model, feed = made()
    run.place(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(BadInput, match="no gradients to apply"):
        run.update(optimizer)
    batches = run.steps(feed)
    loss = loss_of(model, next(batches))
    run.backward(loss, retain_graph=True)
    with pytest.raises(BadInput, match=r"wait for run\.update before run\.step"):
        run.step(loss, optimizer)
    with pytest.raises(BadInput, match="at the end of the epoch"):
        list(batches)
    with pytest.raises(BadInput, match=r"accumulate: 2 is for run\.step"):
        start(config={"accumulate": 2}).backward(loss)


def test_a_loss_that_is_not_finite_is_not_applied(start: Start) -> None:
    run = start(config={"nan": "skip"})
    model, feed = made()
    run.place(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = flat(model)
    for batch in run.steps(feed):
        run.backward(loss_of(model, batch) * float("nan"))
        assert not run.update(optimizer)
        break
    assert torch.equal(flat(model), before)
    lbfgs = torch.optim.LBFGS(model.parameters())

    def closure() -> Tensor:
        loss = loss_of(model, feed.batch(0, 0, 0, 1)) * float("nan")
        run.backward(loss)
        return loss

    with pytest.raises(RunFailed, match="closure"):
        run.update(lbfgs, closure=closure)


@pytest.mark.parametrize("name", ["plain", *OPTIMIZERS])
@pytest.mark.parametrize("ranks", [2, 3])
def test_several_ranks_train_as_one(tmp_path: Path, ranks: int, name: str) -> None:
    case = Case(tmp_path, ranks=ranks)
    assert case.train(TEST_OPTIONS=json.dumps({"loop": "manual", "optimizer": name})) == [0] * ranks, case.log()
    found = [torch.load(tmp_path / f"weights-{rank}.pt") for rank in range(ranks)]
    assert all(torch.equal(found[0], other) for other in found)
    # LBFGS divides by differences of gradients, which magnifies rounding.
    assert torch.allclose(found[0], bare_of(name), atol=2e-3 if name == "lbfgs" else 1e-6)


def bare_of(name: str) -> Tensor:
    if name != "plain":
        return with_closures(name, None)
    model, feed = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(len(feed)):
        optimizer.zero_grad()
        loss_of(model, feed.batch(0, step, 0, 1)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return flat(model)
