"""A small training with everything that breaks exactness elsewhere: dropout, batch norm, augmentation, loader workers,
an incomplete last batch, an unused parameter, a schedule, several gradient buckets."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import headway
from headway.training import Loader
from headway.training.checkpoint.serialization import flatten
from headway.training.distributed import grad_sync, process_group


class Points:
    """Drawn points with noise that depends on the epoch."""

    fingerprint = "points"

    def __init__(self, count: int = 46) -> None:
        self._x = np.random.Generator(np.random.Philox(key=5)).normal(size=(count, 6)).astype("float32")

    def __len__(self) -> int:
        return len(self._x)

    def item(self, index: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        x = self._x[index] + rng.normal(scale=0.1, size=6).astype("float32")
        return torch.from_numpy(x), torch.tensor(self._x[index].sum())


class Net(nn.Module):
    def __init__(self, dropout: float = 0.2, norm: bool = True) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(6, 40),
            nn.BatchNorm1d(40) if norm else nn.Identity(),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(40, 40),
        )
        self.head = nn.Linear(40, 1)
        self.never_used = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)).squeeze(-1)


class Pair:
    """A generator and a discriminator, and their two updates a batch. The generator's loss passes through both."""

    def __init__(self) -> None:
        torch.manual_seed(11)
        self.generator = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6))
        self.discriminator = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))

    def optimizers(self) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
        of_d = torch.optim.Adam(self.discriminator.parameters(), lr=0.05)
        return of_d, torch.optim.SGD(self.generator.parameters(), lr=0.3, momentum=0.5)

    def loss_d(self, x: Tensor) -> Tensor:
        softplus = nn.functional.softplus
        fake = self.generator(x.flip(0)).detach()
        return softplus(-self.discriminator(x)).sum() + softplus(self.discriminator(fake)).sum()

    def loss_g(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(-self.discriminator(self.generator(x.flip(0)))).sum()

    def weights(self) -> Tensor:
        return torch.cat([p.detach().flatten() for m in (self.generator, self.discriminator) for p in m.parameters()])


def two_updates(options: dict[str, Any]) -> None:
    """Two optimizers take turns. With `freezes`, the discriminator learns in its own update only, as many loops do."""
    run = headway.start()
    pair = Pair()
    run.place(pair.generator)
    run.place(pair.discriminator)
    of_d, of_g = pair.optimizers()
    feed = Loader(Points(), 8, shuffle=False)
    run.restore(g=pair.generator, d=pair.discriminator, of_d=of_d, of_g=of_g, data=feed)
    for _ in run.epochs(2):
        for x, _ in run.steps(feed):
            if options.get("freezes"):
                pair.discriminator.requires_grad_(True)
            run.step(of_d, loss_sum=pair.loss_d(x), weight=len(x))
            if options.get("freezes"):
                pair.discriminator.requires_grad_(False)
            run.step(of_g, loss_sum=pair.loss_g(x), weight=len(x))
    run.finish()
    torch.save(pair.weights(), Path(os.environ["TEST_DIR"], f"weights-{run.world.rank}.pt"))


def mean_loss(options: dict[str, Any]) -> None:
    """Mean losses of parts of different sizes."""
    run = headway.start()
    torch.manual_seed(5)
    model = run.place(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    feed = Loader(Points(), 8, shuffle=False)
    run.restore(model=model, optimizer=optimizer, data=feed)
    for _ in run.epochs(2):
        for x, y in run.steps(feed):
            run.step(nn.functional.mse_loss(model(x).squeeze(-1), y), optimizer)
    run.finish()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    torch.save(weights, Path(os.environ["TEST_DIR"], f"weights-{run.world.rank}.pt"))


class Stream(IterableDataset[Tensor]):
    """Ten numbers with noise. With `split`, each rank reads every n-th of them only, as split streams do."""

    def __init__(self, split: bool) -> None:
        self._split = split

    def __iter__(self) -> Iterator[Tensor]:
        rank, size = (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])) if self._split else (0, 1)
        for number in range(rank, 10, size):
            yield torch.tensor([number + float(torch.rand(())) / 10])


def streamed(options: dict[str, Any]) -> None:
    """A stream without a length, on several ranks; every rank records what it trains on."""
    run = headway.start()
    torch.manual_seed(5)
    model = run.place(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = DataLoader(Stream(options.get("split", False)), batch_size=1)
    run.restore(model=model, optimizer=optimizer, data=loader)
    seen = Path(os.environ["TEST_DIR"], f"seen-{run.world.rank}")
    for _ in run.epochs(2):
        for x in run.steps(loader):
            _maybe_die(options, run.global_step, run.world.rank)
            counted = "" if run._counts else " padding"
            with seen.open("a") as file:
                file.write(f"{run.global_step} {float(x)}{counted}\n")
            run.step((model(x) - 1).square().mean(), optimizer)
    run.finish()
    write_digest(run, model, optimizer)


def manual(options: dict[str, Any]) -> None:
    """run.backward and run.update, plain or with a closure."""
    from tests.training.test_manual_update import flat, loss_of, made, with_closures

    run = headway.start()
    if options["optimizer"] != "plain":
        weights = with_closures(options["optimizer"], run)
    else:
        model, feed = made()
        run.place(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for batch in run.steps(feed):
            run.backward(loss_of(model, batch))
            run.update(optimizer)
        weights = flat(model)
    run.finish()
    torch.save(weights, Path(os.environ["TEST_DIR"], f"weights-{run.world.rank}.pt"))


def parity(options: dict[str, Any]) -> None:
    from tests.training import parity_loops

    parity_loops.parity(options)


LOOPS = {"parity": parity, "manual": manual, "two_updates": two_updates, "mean_loss": mean_loss, "streamed": streamed}


def main(options: dict[str, Any]) -> None:
    if options.get("loop") in LOOPS:
        return LOOPS[options["loop"]](options)
    grad_sync.BUCKET_BYTES = grad_sync.LARGE_BYTES = 2000  # several buckets, and large gradients, even in this model
    if options.get("agree_on_host"):
        _agree_on_host()
    if "slow_read_s" in options:
        process_group.TIMEOUT, process_group._MESSAGE_S = timedelta(seconds=options["timeout_s"]), 0.2
    run = headway.start()
    if "slow_read_s" in options:
        _slow_reads(run._session.store, options["slow_read_s"])
    if "die_at_write" in options and run.world.rank == options.get("die_rank", 0):
        _die_at_write(run._session.store, options["die_at_write"])
    if "stale_for_s" in options:
        run._checkpoints._reader._stale_for_s = options["stale_for_s"]
    config = run.config
    feed = Loader(Points(), config.get("batch", 8), workers=config.get("workers", 0))
    model = run.place(Net(config.get("dropout", 0.2), config.get("norm", True)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    run.restore(model=model, optimizer=optimizer, schedule=schedule, data=feed)
    Path(os.environ["TEST_DIR"], f"begun-{os.environ['HEADWAY_ATTEMPT']}-{run.world.rank}").write_text(str(os.getpid()))
    for _ in run.epochs(config.get("epochs", 3)):
        model.train()
        for x, y in run.steps(feed):
            time.sleep(config.get("pause_s", 0.0))
            if options.get("slow_store_from") == run.global_step:
                run._checkpoints.writer.drain()
                run._session.store.write = lambda *args, **more: threading.Event().wait(600)
            if options.get("clock_back_at") == run.global_step:
                _set_clock_back(86_400)
            _maybe_die(options, run.global_step, run.world.rank)
            loss = ((model(x) - y) ** 2).sum()
            weight = 1.3 * len(x)  # no power of two: whether it divides sooner or later then shows in the bits
            run.step(optimizer, loss_sum=loss, weight=weight, clip=1.0, scheduler=schedule)
            run.log(loss=loss / len(x))
        run.score({"error": evaluate(run, model, options)}, best="error", higher=False)
    run.finish()
    return write_digest(run, model, optimizer)


def _slow_reads(store: Any, pause_s: float) -> None:
    """Record what this rank reads of tensors, each file after a pause."""
    read = store.read
    log = Path(os.environ["TEST_DIR"], f"read-{os.environ['RANK']}")

    def slow(key: str, *args: Any, **options: Any) -> bytes:
        if key.endswith(".safetensors"):
            with log.open("a") as file:
                file.write(f"{key}\n")
            threading.Event().wait(pause_s)
        found: bytes = read(key, *args, **options)
        return found

    store.read = slow


def _agree_on_host() -> None:
    """Reduce flags in host memory besides, as on accelerators."""
    made = grad_sync.GradientSync.__init__

    def init(self: grad_sync.GradientSync, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        self._on_host = True

    grad_sync.GradientSync.__init__ = init  # type: ignore[method-assign]


def evaluate(run: headway.Run, model: nn.Module, options: dict[str, Any]) -> float:
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for x, y in run.evaluating(Loader(Points(20), 4, shuffle=False)):
            if options.get("die_in_evaluation") == run.global_step:
                os.kill(os.getpid(), signal.SIGKILL)
            if options.get("term_in_evaluation") == run.global_step and run.world.rank == options.get("term_rank", 0):
                os.kill(os.getpid(), signal.SIGTERM)
            total += float(((model(x) - y) ** 2).sum())
            count += len(x)
    sums = run.total({"error": total, "count": count})
    return sums["error"] / sums["count"]


def write_digest(run: headway.Run, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Of every byte of weights, statistics and optimizer state."""
    _, tensors = flatten({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().numpy().tobytes())
    Path(os.environ["TEST_DIR"], f"digest-{run.world.rank}").write_text(digest.hexdigest())


def _maybe_die(options: dict[str, Any], step: int, rank: int) -> None:
    if options.get("die_at") == step and rank == options.get("die_rank", 0):
        os.kill(os.getpid(), signal.SIGKILL)
    if options.get("term_at") == step and rank == options.get("term_rank", 0):
        os.kill(os.getpid(), signal.SIGTERM)
        if options.get("at_once"):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        if options.get("again_after_s"):
            threading.Event().wait(options["again_after_s"])
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(60)


def _set_clock_back(seconds: int) -> None:
    wall, wall_ns = time.time, time.time_ns
    time.time, time.time_ns = lambda: wall() - seconds, lambda: wall_ns() - seconds * 10**9


def _die_at_write(store: Any, number: int) -> None:
    """Be killed in the middle of the n-th write to the store: before it for even numbers, after it for odd ones."""
    write, count = store.write, 0

    def deadly(*args: Any, **options: Any) -> str:
        nonlocal count
        count += 1
        if count == number // 2 and number % 2 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        version = write(*args, **options)
        if count == number // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return str(version)

    store.write = deadly
