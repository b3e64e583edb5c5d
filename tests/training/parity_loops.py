"""One training in every shape that loops take, written once and run with Headway or bare."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset

import headway
from headway.training import Loader
from tests.waiting import wait_until

EPOCHS, BATCH, SIZE = 2, 6, 8
X = torch.rand(33, SIZE, generator=torch.Generator().manual_seed(4))  # the last batch is incomplete
STREAMED = ("iterable", "stateful", "streaming")
KINDS = ("single", "gan", "actor-critic", "lora", "checkpointing", "accumulation", "amp", *STREAMED)


class Steps(Protocol):
    """What a loop body calls."""

    def step(self, loss: Tensor, optimizer: Optimizer) -> object: ...
    def backward(self, loss: Tensor) -> object: ...
    def update(self, optimizer: Optimizer) -> object: ...
    def autocast(self) -> AbstractContextManager[object]: ...


class Bare:
    """The same with torch alone."""

    def __init__(self, models: list[nn.Module], *, amp: bool) -> None:
        self._models, self._amp = models, amp

    def step(self, loss: Tensor, optimizer: Optimizer) -> None:
        self._clear()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        self._clear()

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def update(self, optimizer: Optimizer) -> None:
        optimizer.step()
        optimizer.zero_grad()

    def autocast(self) -> AbstractContextManager[object]:
        return torch.autocast("cpu", torch.bfloat16) if self._amp else contextlib.nullcontext()

    def _clear(self) -> None:
        for model in self._models:
            model.zero_grad()


class Adapted(nn.Module):
    """A frozen layer, large enough for a file of its own, with an adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(SIZE, 1 << 16, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(SIZE, 2), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x).mean(1, keepdim=True) + self.up(self.down(x))
        return out


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(SIZE, 16), nn.Tanh()), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(checkpoint(self.body, x, use_reentrant=False))
        return out


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        yield from X[:24]


class Stateful:
    """A loader with a state of its own."""

    def __init__(self) -> None:
        self._at = 0

    def __iter__(self) -> Iterator[Tensor]:
        while self._at < 24:
            self._at += BATCH
            yield X[self._at - BATCH : self._at]
        self._at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._at = state["at"]


def streaming() -> Any:
    from datasets import IterableDataset as Streaming

    def rows() -> Iterator[dict[str, list[float]]]:
        for row in X[:24].tolist():
            yield {"x": row}

    return DataLoader(Streaming.from_generator(rows).with_format("torch"), batch_size=BATCH, collate_fn=_stack)


def _stack(rows: list[dict[str, Tensor]]) -> Tensor:
    return torch.stack([row["x"] for row in rows])


def mlp(out: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(SIZE, 16), nn.Tanh(), nn.Linear(16, out))


Body = Callable[[Steps, Tensor], None]


def make(kind: str) -> tuple[list[nn.Module], list[Optimizer], Body]:
    """Return the models, the optimizers and the loop's body."""
    torch.manual_seed(9)
    if kind == "gan":
        return _gan()
    if kind == "actor-critic":
        return _actor_critic()
    model = Adapted() if kind == "lora" else Checkpointed() if kind == "checkpointing" else mlp()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)

    def body(steps: Steps, x: Tensor) -> None:
        with steps.autocast():
            loss = (model(x).float() - x.sum(1, keepdim=True)).square().mean()
        steps.step(loss, optimizer)

    return [model], [optimizer], body


def _gan() -> tuple[list[nn.Module], list[Optimizer], Body]:
    generator, critic = mlp(SIZE), mlp()
    of_g = torch.optim.SGD(generator.parameters(), lr=0.1, momentum=0.5)
    of_c = torch.optim.Adam(critic.parameters(), lr=0.01)
    softplus = nn.functional.softplus

    def body(steps: Steps, x: Tensor) -> None:
        fake = generator(x * 2)
        steps.step(softplus(-critic(x)).mean() + softplus(critic(fake.detach())).mean(), of_c)
        steps.step(softplus(-critic(fake)).mean(), of_g)

    return [generator, critic], [of_g, of_c], body


def _actor_critic() -> tuple[list[nn.Module], list[Optimizer], Body]:
    """Two optimizers are updated from one loss."""
    actor, critic = mlp(2), mlp()
    of_a, of_c = torch.optim.Adam(actor.parameters(), lr=0.01), torch.optim.Adam(critic.parameters(), lr=0.02)

    def body(steps: Steps, x: Tensor) -> None:
        reward, value = x.sum(1), critic(x).squeeze(1)
        policy = -(actor(x).log_softmax(1)[:, 0] * (reward - value).detach()).mean()
        steps.backward(policy + (reward - value).square().mean())
        steps.update(of_a)
        steps.update(of_c)

    return [actor, critic], [of_a, of_c], body


def data_of(kind: str) -> Any:
    if kind == "iterable":
        return DataLoader(Stream(), batch_size=BATCH)
    if kind == "stateful":
        return Stateful()
    return streaming() if kind == "streaming" else Loader(list(X), BATCH, shuffle=False)


def flat(models: list[nn.Module]) -> Tensor:
    return torch.cat([parameter.detach().flatten() for model in models for parameter in model.parameters()])


def bare(kind: str, ranks: int) -> Tensor:
    """Train without Headway on the same global batches. Of a stream, every rank takes a batch per step."""
    models, _, body = make(kind)
    steps = Bare(models, amp=kind == "amp")
    rows = X[:24] if kind in STREAMED else X
    size = BATCH * ranks if kind in STREAMED else BATCH
    for _ in range(EPOCHS):
        for batch in rows.split(size):
            body(steps, batch)
    return flat(models)


def parity(options: dict[str, Any]) -> None:
    """One rank of a run."""
    from tests.training.training import _maybe_die

    kind = options["kind"]
    run = headway.start()
    store = run._session.store
    models, optimizers, body = make(kind)
    for model in models:
        run.place(model)
    data = data_of(kind)
    state = {f"model{n}": m for n, m in enumerate(models)} | {f"optimizer{n}": o for n, o in enumerate(optimizers)}
    run.restore(data=data, **state)
    for _ in run.epochs(EPOCHS):
        for x in run.steps(data):
            if options.get("die_at") == run.global_step:
                wait_until(lambda: any(store.list("checkpoints/last.json")), "no checkpoint was committed")
            _maybe_die(options, run.global_step, run.world.rank)
            body(run, x)
    run.finish()
    torch.save(flat(models), Path(os.environ["TEST_DIR"], f"weights-{run.world.rank}.pt"))
