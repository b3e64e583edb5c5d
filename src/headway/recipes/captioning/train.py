"""Training a captioner: the loop, from top to bottom."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from headway.recipes.captioning.config import Config
from headway.recipes.captioning.critic import Critic
from headway.recipes.captioning.data import load, vocabulary
from headway.recipes.captioning.features import seen
from headway.recipes.captioning.feed import TrainingFeed
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
    look = partial(seen, model.encoder, cache=run.job.cache, learns=cfg.finetune_from is not None, device=run.device)
    feed = TrainingFeed(cfg, look(pictures, mirrored=cfg.mirror), words, seed=run.seed)
    validation = Validation(cfg, look(val, mirrored=cfg.both_sides))  # the features that `headway eval` will ask for

    optimizer = torch.optim.AdamW(
        _groups(cfg, model, cfg.lr), betas=(0.9, 0.98), weight_decay=cfg.weight_decay, fused=True
    )
    careful = torch.optim.AdamW(_groups(cfg, model, cfg.self_critical_lr), weight_decay=0.0, fused=True)
    calm = LambdaLR(careful, rise_and_fall(len(feed) * cfg.self_critical_epochs, warmup=0.0))
    later = {"careful": careful, "calm": calm} if cfg.self_critical_epochs else {}
    schedule = LambdaLR(optimizer, rise_and_fall(len(feed) * cfg.epochs, cfg.warmup))
    averaged = average.swapped if average else nullcontext
    best = BestScores()

    def export() -> Any:
        with averaged():
            return bundle(model, cfg, run.job, best)

    def judge() -> None:
        with averaged():
            scores = validation.scores(run, model)
        if run.score(scores, best=cfg.best):
            best.update(scores)

    run.on_export(export)
    run.restore(model=model, optimizer=optimizer, schedule=schedule, best=best, data=feed, **later)

    for epoch in run.epochs(cfg.epochs):
        _prepare(cfg, model, epoch)
        for batch in run.steps(feed):
            loss_sum, count = model(batch.pictures, batch.captions)
            run.step(loss_sum, optimizer, weight=count, clip=cfg.clip, scheduler=schedule)
            run.log(loss=loss_sum / count, lr=schedule.get_last_lr()[0])
        judge()
    if cfg.self_critical_epochs:
        critic = Critic(cfg, feed.sources)
        for epoch in run.epochs(cfg.self_critical_epochs):
            _prepare(cfg, model, cfg.epochs + epoch)
            for batch in run.steps(feed):
                loss_sum, count, reward = critic.loss(model, batch)
                run.step(loss_sum, careful, weight=count, clip=cfg.clip, scheduler=calm)
                run.log(loss=loss_sum / count, reward=reward, lr=calm.get_last_lr()[0])
            judge()
    run.finish()


def _groups(cfg: Config, model: Captioner, lr: float) -> list[dict[str, Any]]:
    """The encoder's weights learn more slowly than the rest, or not at all."""
    if not isinstance(model.encoder, Published):
        return [{"params": list(model.parameters()), "lr": lr}]
    groups = [{"params": list(model.decoder.parameters()), "lr": lr}]
    if cfg.finetune_from is not None:
        groups.append({"params": list(model.encoder.parameters()), "lr": lr * cfg.finetune_rate})
    return groups


def _prepare(cfg: Config, model: Captioner, epoch: int) -> None:
    """What changes from epoch to epoch. A function of the epoch alone, so that a resumed run does the same."""
    model.train()
    if isinstance(model.encoder, Published) and cfg.finetune_from is not None and epoch >= cfg.finetune_from:
        model.encoder.learn()
    model.decoder.own_words = (1 - cfg.teacher_forcing) * min(1.0, epoch / max(1, cfg.epochs - 1))


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
