"""Mixed precision: what it covers, what its outputs are, and what is refused."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from headway.core.errors import BadInput
from headway.training import Loader
from headway.training.nested import map_tensors
from headway.training.precision import to_float32
from headway.training.run import Run
from tests.training.inside import Start, runs
from tests.training.training import Points


@pytest.fixture(name="start")
def _start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    yield from runs(tmp_path, monkeypatch)


class Output(OrderedDict[str, Any]):
    """A mapping whose items are attributes too, as Hugging Face's ModelOutput."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Bypassing(nn.Module):
    """A model whose training_step does not call its own forward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layer = nn.Linear(6, 1)
        self.seen: list[torch.dtype] = []

    def forward(self, x: Tensor) -> Output:
        return Output(scores=self.scores(x))

    def scores(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layer(x).squeeze(-1)
        self.seen.append(scores.dtype)
        return scores

    def training_step(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.scores(x), y)


def parts(run: Run) -> tuple[Bypassing, torch.optim.SGD, Loader]:
    model = run.place(Bypassing())
    return model, torch.optim.SGD(model.parameters(), lr=0.05), Loader(Points(), 8, shuffle=False)


def bare(seed: int) -> Tensor:
    """A plain loop with torch's own autocast."""
    model, feed = Bypassing(), Loader(Points(), 8, shuffle=False, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(len(feed)):
        x, y = feed.batch(0, step, 0, 1)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.training_step(x, y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.layer.weight.detach()


def test_a_training_step_that_bypasses_forward_is_covered_as_in_a_bare_loop(start: Start) -> None:
    run = start(config={"precision": "bf16"})
    model, optimizer, feed = parts(run)
    for x, y in run.steps(feed):
        with run.autocast():
            loss = model.training_step(x, y)
        run.step(loss, optimizer)
    assert set(model.seen) == {torch.bfloat16}
    assert torch.equal(model.layer.weight, bare(run.seed))


def test_a_precision_that_has_no_effect_is_refused_at_the_first_step(start: Start) -> None:
    run = start(config={"precision": "bf16"})
    model, optimizer, feed = parts(run)
    for x, y in run.steps(feed):
        loss = model.training_step(x, y)
        with pytest.raises(BadInput, match="precision: bf16 had no effect"):
            run.step(loss, optimizer)
        break
    assert set(model.seen) == {torch.float32}


def test_the_forward_of_a_placed_model_is_covered_and_its_output_keeps_its_class(start: Start) -> None:
    run = start(config={"precision": "bf16"})
    model, optimizer, feed = parts(run)
    for x, y in run.steps(feed):
        output = model(x)
        assert type(output) is Output
        assert output.scores.dtype == torch.float32
        run.step(nn.functional.mse_loss(output.scores, y), optimizer)
        with run.autocast():
            assert model(x).scores.dtype == torch.bfloat16
    assert set(model.seen) == {torch.bfloat16}


def test_without_a_precision_autocast_does_nothing(start: Start) -> None:
    run = start()
    model, _, _ = parts(run)
    with run.autocast():
        assert model(torch.ones(2, 6)).scores.dtype == torch.float32


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Record:
    x: Tensor
    name: str


@pytest.mark.parametrize(
    "value",
    [
        {"x": torch.ones(2)},
        OrderedDict(x=torch.ones(2)),
        UserDict(x=torch.ones(2)),
        Output(x=torch.ones(2)),
        [torch.ones(2)],
        (torch.ones(2), "name"),
        Pair(torch.ones(2), torch.ones(2)),
        Record(torch.ones(2), "name"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_nested_batches_and_outputs_keep_their_class(value: Any) -> None:
    halved = map_tensors(value, lambda tensor: tensor.to(torch.bfloat16))
    assert type(halved) is type(value)
    assert halved is not value
    restored = to_float32(halved)
    assert type(restored) is type(value)
    assert str(restored) == str(value)
