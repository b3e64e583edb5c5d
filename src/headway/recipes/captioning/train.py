"""Training a captioner: the loop, from top to bottom."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from headway.recipes.captioning.config import Config
from headway.recipes.captioning.data import Pictures, load, vocabulary
from headway.recipes.captioning.feed import Sources, TrainingFeed
from headway.recipes.captioning.model import Captioner
from headway.recipes.captioning.predict import bundle
from headway.recipes.captioning.published import Published
from headway.recipes.captioning.score import Validation
from headway.runtime import Run


def train(run: Run, cfg: Config) -> None:
    """Learn to caption the training pictures, and choose the best weights by what they say of the validation ones."""
    pictures, val = (load(cfg, run.job.data, split, cache=run.job.cache) for split in ("train", "val"))
    words = vocabulary(cfg, pictures)
    model = run.place(Captioner(cfg, words))
    average = run.average(model, cfg.average) if cfg.average else None
    feed = TrainingFeed(cfg, _seen(run, cfg, model, pictures, mirrored=cfg.mirror), words, seed=run.seed)
    validation = Validation(cfg, _seen(run, cfg, model, val, mirrored=False))

    optimizer = torch.optim.AdamW(_groups(cfg, model), betas=(0.9, 0.98), weight_decay=cfg.weight_decay, fused=True)
    schedule = LambdaLR(optimizer, rise_and_fall(len(feed) * cfg.epochs, cfg.warmup))
    averaged = average.swapped if average else nullcontext
    best = BestScores()

    def export() -> Any:
        with averaged():
            return bundle(model, cfg, run.job, best)

    run.on_export(export)
    run.restore(model=model, optimizer=optimizer, schedule=schedule, best=best, data=feed)

    for epoch in run.epochs(cfg.epochs):
        _prepare(cfg, model, epoch)
        for batch in run.steps(feed):
            loss_sum, count = model(batch.pictures, batch.captions)
            run.step(loss_sum, optimizer, weight=count, clip=cfg.clip, scheduler=schedule)
            run.log(loss=loss_sum / count, lr=schedule.get_last_lr()[0])
        with averaged():
            scores = validation.scores(run, model)
        if run.score(scores, best=cfg.best):
            best.update(scores)
    run.finish()


def _seen(run: Run, cfg: Config, model: Captioner, pictures: list[Pictures], *, mirrored: bool) -> Sources:
    """What the model is given: the pictures, or what its encoder sees of them where that never changes."""
    if not isinstance(model.encoder, Published) or cfg.finetune_from is not None:
        return Sources(pictures)
    from headway.recipes.captioning.features import features

    cache, device = run.job.cache, run.device
    return Sources(
        pictures, [features(model.encoder, part, cache, mirrored=mirrored, device=device) for part in pictures]
    )


def _groups(cfg: Config, model: Captioner) -> list[dict[str, Any]]:
    """The encoder's weights learn more slowly than the rest, or not at all."""
    if not isinstance(model.encoder, Published):
        return [{"params": list(model.parameters()), "lr": cfg.lr}]
    groups = [{"params": list(model.decoder.parameters()), "lr": cfg.lr}]
    if cfg.finetune_from is not None:
        groups.append({"params": list(model.encoder.parameters()), "lr": cfg.lr * cfg.finetune_rate})
    return groups


def _prepare(cfg: Config, model: Captioner, epoch: int) -> None:
    """What changes from epoch to epoch. A function of the epoch alone, so that a resumed run does the same."""
    model.train()
    if isinstance(model.encoder, Published) and cfg.finetune_from is not None and epoch >= cfg.finetune_from:
        model.encoder.learn()
    model.decoder.own_words = (1 - cfg.teacher_forcing) * epoch / max(1, cfg.epochs - 1)


def rise_and_fall(steps: int, warmup: float) -> Callable[[int], float]:
    """The learning rate as a share of its highest: a straight rise, then half a cosine down to a hundredth."""
    rising = max(1, round(steps * warmup))

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        done = min(1.0, (step - rising) / max(1, steps - rising))
        return 0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2

    return factor


class BestScores(dict[str, float]):
    """The validation scores of the best weights so far, kept in every checkpoint beside the weights."""

    def state_dict(self) -> dict[str, float]:
        return dict(self)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.clear()
        self.update(state)
