"""Training a captioner and a translator: the recipes' steps against the same steps in a plain PyTorch loop.

Both train copies of one model on the same batches, and take turns of one step, in a random order for each round. The
plain loop makes its batch, runs forward and backward, clips, steps and records the loss; Headway's also seeds every
generator, checks for stops and for due checkpoints, and records its metrics. Promised: at most 2 % slower.
"""

from __future__ import annotations

import copy
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks.harness import note

ROUNDS, WARM = 150, 10
PROMISE = 1.02
Step = Callable[[], None]


class Made(NamedTuple):
    """A recipe's parts, and how much one of its steps learns from."""

    model: Any
    feed: Any
    loss: Callable[[Any, Any], tuple[Any, Any]]
    clip: float
    a_step: float
    unit: str


def main() -> int:
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
    return sum(measure(name, make()) for name, make in {"captioning": captioning, "translation": translation}.items())


def measure(name: str, made: Made) -> int:
    steps = {"plain loop": plain(made), "Headway": headway(made)}
    taken: dict[str, list[float]] = {side: [] for side in steps}
    order, dice = list(steps), random.Random(7)
    for round_ in range(ROUNDS + WARM):
        dice.shuffle(order)
        for side in order:
            began = time.perf_counter()
            steps[side]()
            if round_ >= WARM:
                taken[side].append(time.perf_counter() - began)
    pairs = zip(taken["Headway"], taken["plain loop"], strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    base = statistics.median(taken["plain loop"])
    print(f"{name}\n\n| | {made.unit} a second | ms a step | × the plain loop |\n| --- | ---: | ---: | ---: |")
    for side, factor in (("plain loop", 1.0), ("Headway", ratio)):
        print(f"| {side} | {made.a_step / base / factor:,.0f} | {base * factor * 1e3:.1f} | {factor:.3f} |")
        limit = {"limit": "the plain loop", "floor": base * 1e3} if side == "Headway" else {}
        note(f"{name}: a step", side, base * factor * 1e3, "ms", **limit)
    print()
    if ratio > PROMISE:
        print(f"broken promise: over {PROMISE - 1:.0%}\n")
    return int(ratio > PROMISE)


def plain(made: Made) -> Step:
    import torch

    model, logged, batches = copy.deepcopy(made.model), [], forever(made.feed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        total, count = made.loss(model, next(batches))
        (total / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), made.clip)
        optimizer.step()
        optimizer.zero_grad()
        logged.append((total / count).item())

    return step


def forever(feed: Any) -> Iterator[Any]:
    epoch = 0
    while True:
        for number in range(len(feed)):
            yield feed.batch(epoch, number, 0, 1)
        epoch += 1


def headway(made: Made) -> Step:
    import torch

    import headway

    os.environ["HEADWAY_RUN_URL"] = tempfile.mkdtemp(prefix="headway-bench-") + "/run"
    run = headway.start()
    model = run.place(copy.deepcopy(made.model))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    run.restore(model=model, optimizer=optimizer, data=made.feed)

    def batches() -> Iterator[Any]:
        for _ in run.epochs(1_000_000):
            yield from run.steps(made.feed)

    data = batches()

    def step() -> None:
        total, count = made.loss(model, next(data))
        run.step(optimizer, loss_sum=total, weight=count, clip=made.clip)
        run.log(loss=total / count)

    return step


def captioning() -> Made:
    from headway.recipes.captioning.config import Config
    from headway.recipes.captioning.data import TrainingFeed, encoded_views, load, vocabulary
    from headway.recipes.captioning.model import Captioner
    from headway.spec import Data

    cfg = Config(train_samples=2000)
    pictures = load(cfg, Data(), "train")
    words = vocabulary(cfg, pictures)
    model = Captioner(cfg, words)
    feed = TrainingFeed(cfg, encoded_views(model.encoder, pictures, None), words, seed=0)
    return Made(model, feed, lambda m, b: m(b.pictures, b.captions), cfg.clip, cfg.batch_size, "pictures")


def translation() -> Made:
    from headway.recipes.translation.config import Config
    from headway.recipes.translation.data import load
    from headway.recipes.translation.model import Translator
    from headway.spec import Data

    cfg = Config()
    pairs = load(cfg, Data(), "train")
    feed = pairs.feed(cfg, seed=0)
    tokens = sum(int((feed.batch(0, step, 0, 1)["target"] != 0).sum()) for step in range(len(feed))) / len(feed)
    model = Translator(cfg, pairs.tokenizer)
    return Made(model, feed, lambda m, b: m(b["source"], b["target"]), cfg.clip, tokens, "target tokens")


if __name__ == "__main__":
    sys.exit(main())
