"""The cost of a step over a bare PyTorch loop. Promised: at most 50 µs, and at most 2 % if a step takes 5 ms.

Every framework trains the same model on the same batches with one thread, and logs the loss every step. They take turns
of a few steps, in a random order for each round; the first steps of a turn are not counted, since in a real training
loop the caches are not full of another framework's code at every step.
Measured is the CPU time of the training thread, which never waits here: other programs on the machine do not count.
Fabric, Accelerate and Lightning are in a separate environment with this torch, in which all are measured.
Lightning has its own loop, which cannot be run step by step, and is measured a hundred steps at a time.
`bare, once more` is the same loop again: its difference is the noise of the measurement.
The cost of an epoch's end and of a checkpoint is in checkpoint_stall.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Absent, environment, note

SIZES = {"tiny": (8, 16, 200), "5 ms": (384, 640, 120)}  # batch (or so, of the second), width, rounds
TURN, UNCOUNTED = 25, 5  # steps of each in a round, and how many of them until its code is in the caches again
LONGEST, BLOCK = 1_000_000, 100
Step = Callable[[], None]


def main() -> int:
    """Measured in a child, in the environment that has the rivals; without one, without them."""
    try:
        python = str(environment("step-overhead/rivals", "accelerate", "lightning"))
    except Absent as why:
        print(f"Fabric, Accelerate and Lightning take no part: {why}\n")
        python = sys.executable
    root = Path(__file__).resolve().parents[1]
    env = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    done = subprocess.run(
        [python, "-m", "benchmarks.step_overhead"], env=env, stdout=subprocess.PIPE, text=True, check=False
    )
    for line in done.stdout.splitlines():
        if line.startswith("note "):
            note(**json.loads(line.removeprefix("note ")))
        else:
            print(line)
    return done.returncode


def measured() -> int:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    return sum(measure(size, *how) for size, how in sized().items())


def sized() -> dict[str, tuple[int, int, int]]:
    """What takes 5 ms is another batch on another machine."""
    batch, width, rounds = SIZES["5 ms"]
    return {**SIZES, "5 ms": (max(1, round(batch * 5e-3 / turn(bare(batch, width)))), width, rounds)}


def measure(size: str, batch: int, width: int, rounds: int) -> int:
    steps = {name: make(batch, width) for name, make in contenders().items()}
    taken: dict[str, list[float]] = {name: [] for name in steps}
    order, dice = list(steps), random.Random(7)
    for round_ in range(rounds + 2):
        dice.shuffle(order)
        for name in order:
            seconds = turn(steps[name])
            if round_ >= 2:
                taken[name].append(seconds)
    over = {name: statistics.median(differences(own, taken["bare"])) for name, own in taken.items()}
    if importlib.util.find_spec("lightning"):
        taken["Lightning"] = lightning(batch, width, rounds * TURN // BLOCK)
        over["Lightning"] = statistics.median(taken["Lightning"]) - statistics.median(taken["bare"])
    return show(size, taken, over)


def turn(step: Step) -> float:
    """The median of some steps in a row."""
    taken = []
    for _ in range(TURN):
        began = time.thread_time()
        step()
        taken.append(time.thread_time() - began)
    return statistics.median(taken[UNCOUNTED:])


def differences(own: list[float], bare: list[float]) -> list[float]:
    """To the bare steps of the same round: a noisy machine hits both alike."""
    return [one - other for one, other in zip(own, bare, strict=True)]


def show(size: str, taken: dict[str, list[float]], over: dict[str, float]) -> int:
    bare = statistics.median(taken["bare"])
    print(f"A {size} step: the bare loop takes {bare * 1e6:.0f} µs\n")
    print("| | µs a step | over bare (µs) | % |\n| --- | ---: | ---: | ---: |")
    for name, own in taken.items():
        print(f"| {name} | {statistics.median(own) * 1e6:.0f} | {over[name] * 1e6:.0f} | {over[name] / bare:.1%} |")
    for name in [name for name in taken if not name.startswith("bare")]:
        group = f"over a bare {size} step"
        print("note " + json.dumps({"group": group, "name": name, "value": over[name] * 1e6, "unit": "µs"}))
    ours = {"value": (bare + over["headway"]) * 1e6, "limit": "the bare loop", "floor": bare * 1e6, "unit": "µs"}
    print("note " + json.dumps({"group": f"a {size} step", "name": "headway", **ours}))
    print()
    if over["headway"] > 50e-6:
        print("broken promise: over 50 µs\n")
        return 1
    if size == "5 ms" and over["headway"] / bare > 0.02:
        print("broken promise: over 2 %\n")
        return 1
    return 0


def contenders() -> dict[str, Callable[[int, int], Step]]:
    found: dict[str, Callable[[int, int], Step]] = {"bare": bare, "bare, once more": bare, "headway": headway}
    if importlib.util.find_spec("lightning"):
        found["Fabric"] = fabric
    if importlib.util.find_spec("accelerate"):
        found["Accelerate"] = accelerate
    return found


@functools.cache
def model_of(width: int) -> Any:
    """One for all: where in memory a copy happens to lie makes 100 µs of a 5 ms step."""
    from torch import nn

    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))


def optimizer_of(model: Any) -> Any:
    import torch

    return torch.optim.SGD(model.parameters(), lr=1e-4)


@functools.cache
def drawn(batch: int, width: int) -> Any:
    import torch

    return torch.randn(8, batch, width)


class Batches:
    """The same batches for everyone; also a feed."""

    fingerprint = "drawn"

    def __init__(self, batch: int, width: int, steps: int = LONGEST) -> None:
        self._data, self._steps = drawn(batch, width), steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        return (self.batch(0, step, 0, 1) for step in range(self._steps))

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Any:
        return self._data[step % 8]


def bare(batch: int, width: int) -> Step:
    model, data = model_of(width), iter(Batches(batch, width))
    optimizer = optimizer_of(model)
    logged: list[float] = []

    def step() -> None:
        loss = model(next(data)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        logged.append(loss.item())

    return step


def headway(batch: int, width: int) -> Step:
    os.environ["HEADWAY_RUN_URL"] = tempfile.mkdtemp(prefix="headway-bench-") + "/run"
    import headway

    run = headway.start()
    model, feed = run.place(model_of(width)), Batches(batch, width)
    optimizer = optimizer_of(model)
    run.restore(model=model, optimizer=optimizer, data=feed)
    epochs = iter(run.epochs(1))
    next(epochs)
    data = iter(run.steps(feed))

    def step() -> None:
        loss = model(next(data)).mean()
        run.step(loss, optimizer)
        run.log(loss=loss)

    return step


def fabric(batch: int, width: int) -> Step:
    from lightning.fabric import Fabric  # type: ignore[import-not-found]

    fabric = Fabric(accelerator="cpu", devices=1)
    data = iter(Batches(batch, width))
    plain = model_of(width)
    model, optimizer = fabric.setup(plain, optimizer_of(plain))
    logged: list[float] = []

    def step() -> None:
        loss = model(next(data)).mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        logged.append(loss.item())

    return step


def accelerate(batch: int, width: int) -> Step:
    from accelerate import Accelerator  # type: ignore[import-not-found]

    accelerator = Accelerator(cpu=True)
    data = iter(Batches(batch, width))
    plain = model_of(width)
    model, optimizer = accelerator.prepare(plain, optimizer_of(plain))
    logged: list[float] = []

    def step() -> None:
        with accelerator.accumulate(model):
            loss = model(next(data)).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            logged.append(loss.item())

    return step


def lightning(batch: int, width: int, blocks: int) -> list[float]:
    """Seconds for one step, each the mean over a block."""
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

    items: Any = list(Batches(batch, width, BLOCK))
    data: Any = torch.utils.data.DataLoader(items, batch_size=None)
    module = Module()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    taken = []
    for _ in range(max(3, min(blocks, 8))):
        trainer = L.Trainer(accelerator="cpu", max_epochs=1, enable_model_summary=False, **quiet)
        module.times.clear()
        trainer.fit(module, data)
        taken.append((module.times[-1] - module.times[0]) / (len(module.times) - 1))
    return taken


if __name__ == "__main__":
    code = measured()
    sys.stdout.flush()
    os._exit(code)  # a run whose epoch is not over would keep its last state first
