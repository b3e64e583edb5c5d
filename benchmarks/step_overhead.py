"""What a step costs over a bare PyTorch loop. Promised: at most 50 µs, and at most 2 % where a step takes 5 ms.

Everyone trains the same model on the same batches with one thread, and logs the loss every step. Measured is the CPU
time of the training thread, which never waits here: other programs on the machine do not count. Fabric, Accelerate and
Lightning take part where they can be imported (`pip install lightning accelerate`).
"""

from __future__ import annotations

import importlib.util
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

ROUNDS = 15
SIZES = {"tiny": (8, 16, 200), "5 ms": (256, 640, 30)}  # batch, width, steps in a round
Block = Callable[[], float]  # seconds for one step, measured over a round


def main() -> int:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    broken = 0
    for size, (batch, width, steps) in SIZES.items():
        blocks = {name: make(batch, width, steps) for name, make in contenders().items()}
        seconds: dict[str, list[float]] = {name: [] for name in blocks}
        for round_ in range(ROUNDS + 1):
            for name, block in blocks.items():
                taken = block()
                if round_:
                    seconds[name].append(taken)
        broken += show(size, seconds)
    return broken


def show(size: str, seconds: dict[str, list[float]]) -> int:
    """Medians of the differences to the bare loop's round next to it: a noisy machine hits both alike."""
    bare = statistics.median(seconds["bare"])
    print(f"A {size} step: the bare loop takes {bare * 1e6:.0f} µs\n")
    print("| | µs a step | over bare (µs) | % |\n| --- | ---: | ---: | ---: |")
    over = {}
    for name, taken in seconds.items():
        over[name] = statistics.median(one - other for one, other in zip(taken, seconds["bare"], strict=True))
        micros, share = statistics.median(taken) * 1e6, over[name] / bare * 100
        print(f"| {name} | {micros:.0f} | {over[name] * 1e6:.0f} | {share:.1f} |")
    print()
    if size == "tiny" and over["headway"] > 50e-6:
        print("broken promise: over 50 µs\n")
        return 1
    if size == "5 ms" and over["headway"] / bare > 0.02:
        print("broken promise: over 2 %\n")
        return 1
    return 0


def contenders() -> dict[str, Callable[[int, int, int], Block]]:
    found: dict[str, Callable[[int, int, int], Block]] = {"bare": bare, "headway": headway}
    if importlib.util.find_spec("lightning"):
        found |= {"Fabric": fabric, "Lightning": lightning}
    if importlib.util.find_spec("accelerate"):
        found["Accelerate"] = accelerate
    return found


def model_of(width: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))


def optimizer_of(model: Any) -> Any:
    import torch

    return torch.optim.SGD(model.parameters(), lr=1e-4)


class Batches:
    """The same batches for everyone; also a feed."""

    fingerprint = "drawn"

    def __init__(self, batch: int, width: int, steps: int) -> None:
        import torch

        self._data, self._steps = torch.randn(8, batch, width), steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        return (self.batch(0, step, 0, 1) for step in range(self._steps))

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Any:
        return self._data[step % 8]


def bare(batch: int, width: int, steps: int) -> Block:
    model, data = model_of(width), Batches(batch, width, steps)
    optimizer = optimizer_of(model)
    logged: list[float] = []

    def block() -> float:
        began = time.thread_time()
        for x in data:
            loss = model(x).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            logged.append(loss.item())
        return (time.thread_time() - began) / steps

    return block


def headway(batch: int, width: int, steps: int) -> Block:
    os.environ["HEADWAY_RUN_URL"] = tempfile.mkdtemp(prefix="headway-bench-") + "/run"
    import headway

    run = headway.start()
    model, data = run.place(model_of(width)), Batches(batch, width, steps)
    optimizer = optimizer_of(model)
    run.restore(model=model, optimizer=optimizer, data=data)
    epochs = iter(run.epochs(10_000))

    def block() -> float:
        next(epochs)
        began = time.thread_time()
        for x in run.steps(data):
            loss = model(x).mean()
            run.step(loss, optimizer)
            run.log(loss=loss)
        return (time.thread_time() - began) / steps

    return block


def fabric(batch: int, width: int, steps: int) -> Block:
    from lightning.fabric import Fabric  # type: ignore[import-not-found]

    fabric = Fabric(accelerator="cpu", devices=1)
    data = Batches(batch, width, steps)
    plain = model_of(width)
    model, optimizer = fabric.setup(plain, optimizer_of(plain))
    logged: list[float] = []

    def block() -> float:
        began = time.thread_time()
        for x in data:
            loss = model(x).mean()
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            logged.append(loss.item())
        return (time.thread_time() - began) / steps

    return block


def accelerate(batch: int, width: int, steps: int) -> Block:
    from accelerate import Accelerator  # type: ignore[import-not-found]

    accelerator = Accelerator(cpu=True)
    data = Batches(batch, width, steps)
    plain = model_of(width)
    model, optimizer = accelerator.prepare(plain, optimizer_of(plain))
    logged: list[float] = []

    def block() -> float:
        began = time.thread_time()
        for x in data:
            with accelerator.accumulate(model):
                loss = model(x).mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                logged.append(loss.item())
        return (time.thread_time() - began) / steps

    return block


def lightning(batch: int, width: int, steps: int) -> Block:
    import lightning as L  # type: ignore[import-not-found]
    import torch

    class Module(L.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = model_of(width)
            self.times: list[float] = []

        def training_step(self, x: Any, number: int) -> Any:
            self.times.append(time.thread_time())
            loss = self.net(x).mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return optimizer_of(self)

    data = torch.utils.data.DataLoader(list(Batches(batch, width, steps)), batch_size=None)
    module = Module()

    def block() -> float:
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        module.times.clear()
        trainer.fit(module, data)
        return (module.times[-1] - module.times[0]) / (len(module.times) - 1)

    return block


if __name__ == "__main__":
    sys.exit(main())
