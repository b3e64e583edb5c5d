"""Several optimizers that take turns: each is given the gradients of its own losses, as in a bare loop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headway.training import Loader
from headway.training.run import Run
from tests.training.inside import Start, runs
from tests.training.live import Case
from tests.training.training import Pair, Points


@pytest.fixture(name="start")
def _start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    yield from runs(tmp_path, monkeypatch)


def feed_of(run: Run | None = None) -> Loader:
    feed = Loader(Points(), 8, shuffle=False)
    feed.seed = 3 if run is None else run.seed
    return feed


def bare(seed: int, cuts: int = 1, epochs: int = 2) -> Tensor:
    """The two updates by hand; with `cuts`, each accumulated over so many micro-batches with nothing of the other's."""
    pair, feed = Pair(), Loader(Points(), 8, shuffle=False)
    feed.seed = seed
    of_d, of_g = pair.optimizers()
    for epoch in range(epochs):
        for step in range(len(feed)):
            batches = [feed.batch(epoch, step, part, cuts)[0] for part in range(cuts)]
            count = sum(len(x) for x in batches)
            generator = [p.detach().clone() for p in pair.generator.parameters()]
            before = [p.detach().clone() for p in pair.discriminator.parameters()]
            update(pair.loss_d, of_d, batches, count, [of_g])
            after = [p.detach().clone() for p in pair.discriminator.parameters()]
            if cuts > 1:  # the generator's losses but the last were computed before the discriminator learned
                gradients = losses_before(pair, of_g, batches[:-1], before)
                put(pair.discriminator, after)
                assert all(torch.equal(a, b) for a, b in zip(generator, pair.generator.parameters(), strict=True))
                for parameter, gradient in zip(pair.generator.parameters(), gradients, strict=True):
                    parameter.grad = gradient
                update(pair.loss_g, of_g, batches[-1:], count, [of_d], cleared=False)
            else:
                update(pair.loss_g, of_g, batches, count, [of_d])
    return pair.weights()


def losses_before(
    pair: Pair, of_g: torch.optim.Optimizer, batches: list[Tensor], weights: list[Tensor]
) -> list[Tensor]:
    put(pair.discriminator, weights)
    of_g.zero_grad()
    for x in batches:
        pair.loss_g(x).backward()  # type: ignore[no-untyped-call]
    return [p.grad.clone() for p in pair.generator.parameters() if p.grad is not None]


def put(module: nn.Module, weights: list[Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), weights, strict=True):
            parameter.copy_(value)


def update(
    loss: object,
    optimizer: torch.optim.Optimizer,
    batches: list[Tensor],
    count: int,
    others: list[torch.optim.Optimizer],
    *,
    cleared: bool = True,
) -> None:
    assert callable(loss)
    if cleared:
        optimizer.zero_grad()
    if len(batches) == 1 and cleared:
        (loss(batches[0]) / count).backward()
    else:
        for x in batches:
            loss(x).backward()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(count)
    optimizer.step()
    for one in (optimizer, *others):
        one.zero_grad()


def train(run: Run, epochs: int = 2) -> Pair:
    pair = Pair()
    run.place(pair.generator)
    run.place(pair.discriminator)
    of_d, of_g = pair.optimizers()
    feed = feed_of(run)
    for _ in run.epochs(epochs):
        for x, _ in run.steps(feed):
            run.step(of_d, loss_sum=pair.loss_d(x), weight=len(x))
            run.step(of_g, loss_sum=pair.loss_g(x), weight=len(x))
    return pair


def test_two_updates_on_one_rank_are_those_of_a_bare_loop_to_the_bit(start: Start) -> None:
    run = start()
    assert torch.equal(train(run).weights(), bare(run.seed))


@pytest.mark.parametrize("freezes", [False, True])
def test_two_updates_on_two_ranks_are_those_of_a_bare_loop(tmp_path: Path, freezes: bool) -> None:
    case = Case(tmp_path, ranks=2)
    assert case.train(TEST_OPTIONS=json.dumps({"loop": "two_updates", "freezes": freezes})) == [0, 0], case.log()
    first, second = (torch.load(tmp_path / f"weights-{rank}.pt") for rank in (0, 1))
    assert torch.equal(first, second)
    assert torch.allclose(first, bare(7), atol=1e-5)


def test_micro_batches_of_two_optimizers_are_accumulated_apart(start: Start) -> None:
    run = start(config={"accumulate": 2})
    trained = train(run)
    assert run.global_step == 2 * len(feed_of(run))
    assert torch.allclose(trained.weights(), bare(run.seed, cuts=2), atol=1e-5)


def test_no_parameter_has_a_gradient_after_an_update(start: Start) -> None:
    run = start()
    pair = Pair()
    run.place(pair.generator)
    run.place(pair.discriminator)
    loose = nn.Parameter(torch.ones(()))  # never placed
    optimizer = torch.optim.SGD([*pair.generator.parameters(), loose], lr=0.1)
    for x, _ in run.steps(feed_of(run)):
        run.step(pair.loss_g(x) * loose, optimizer)
        held = [*pair.generator.parameters(), *pair.discriminator.parameters(), loose]
        assert [parameter.grad for parameter in held] == [None] * len(held)
    assert float(loose.detach()) != 1


def test_a_bad_loss_of_one_optimizer_leaves_the_other_no_gradient(start: Start) -> None:
    run = start(config={"nan": "skip"})
    pair = Pair()
    run.place(pair.generator)
    run.place(pair.discriminator)
    of_d, of_g = pair.optimizers()
    for number, (x, _) in enumerate(run.steps(feed_of(run))):
        run.step(pair.loss_g(x) * (float("nan") if number == 1 else 1), of_g)
        assert all(parameter.grad is None for parameter in pair.discriminator.parameters())
        run.step(pair.loss_d(x), of_d)
    assert torch.isfinite(pair.weights()).all()
