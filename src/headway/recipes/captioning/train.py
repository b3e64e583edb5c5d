"""Training a captioner: the loop, from top to bottom."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.optim.lr_scheduler import LambdaLR

from headway.recipes.captioning.config import Config
from headway.recipes.captioning.data import TrainingFeed, load, vocabulary
from headway.recipes.captioning.model import Captioner
from headway.recipes.captioning.predict import bundle
from headway.recipes.captioning.score import validate
from headway.runtime import Run


def train(run: Run, cfg: Config) -> None:
    """Learn to caption the training pictures, and choose the best weights by what they say of the validation ones."""
    pictures, val = load(cfg, run.job.data, "train"), load(cfg, run.job.data, "val")
    words = vocabulary(cfg, pictures)
    feed = TrainingFeed(cfg, pictures, words, seed=run.seed)

    model = run.place(Captioner(cfg, words))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=cfg.lr, betas=(0.9, 0.98), weight_decay=cfg.weight_decay, fused=True
    )
    schedule = LambdaLR(optimizer, rise_and_fall(len(feed) * cfg.epochs, cfg.warmup))
    best = BestScores()
    run.on_export(lambda: bundle(model, cfg, run.job, best))
    run.restore(model=model, optimizer=optimizer, schedule=schedule, best=best, data=feed)

    for _ in run.epochs(cfg.epochs):
        for batch in run.steps(feed):
            loss_sum, count = model(batch.pictures, batch.captions)
            run.step(loss_sum, optimizer, weight=count, clip=cfg.clip, scheduler=schedule)
            run.log(loss=loss_sum / count, lr=schedule.get_last_lr()[0])
        scores = validate(run, model, cfg, val)
        if run.score(scores, best="bleu_4"):
            best.update(scores)
    run.finish()


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

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.clear()
        self.update(state)
