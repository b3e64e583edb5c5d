"""Training of a translator."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from headway.recipes.translation.config import Config
from headway.recipes.translation.data import check_same_tokenizer, load
from headway.recipes.translation.evaluate import validate
from headway.recipes.translation.inference import bundle
from headway.recipes.translation.model import Translator
from headway.rundir.history import BestScores
from headway.training import Run
from headway.training.schedules import Schedule


def train(run: Run, cfg: Config) -> None:
    """Train on the training pairs, and keep the weights with the best validation BLEU."""
    pairs = load(cfg, run.job.data, "train", cache=run.job.cache)
    val = load(cfg, run.job.data, "val", cache=run.job.cache)
    check_same_tokenizer(pairs, val)
    feed = pairs.feed(cfg, seed=run.seed)

    model = run.place(Translator(cfg, pairs.tokenizer))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=cfg.lr, betas=(0.9, 0.98), eps=1e-9, weight_decay=cfg.weight_decay, fused=True
    )
    schedule = Schedule(optimizer, cfg.schedule, **schedule_options(cfg, len(feed)))
    average = run.average(model, cfg.ema_decay) if cfg.ema_decay else None
    best = BestScores()

    def averaged() -> AbstractContextManager[None]:
        return average.swapped() if average else nullcontext()

    def exported() -> Any:
        with averaged():
            return bundle(model, cfg, run.job, best)

    run.on_export(exported)
    run.restore(model=model, optimizer=optimizer, schedule=schedule, best=best, data=feed)

    for epoch in run.epochs(cfg.epochs):
        for batch in run.steps(feed):
            with run.autocast():
                loss_sum, tokens = model(batch["source"], batch["target"])
            run.step(optimizer, loss_sum=loss_sum, weight=tokens, clip=cfg.clip, scheduler=schedule)
            run.log(loss=loss_sum / tokens, lr=schedule.lr)
        if (epoch + 1) % cfg.score_every == 0 or epoch + 1 == cfg.epochs:
            with averaged():
                scores = validate(run, model, cfg, val)
            if run.score(scores, best="bleu", patience=cfg.patience):
                best.update(scores)
    run.finish()


def schedule_options(cfg: Config, steps_an_epoch: int) -> dict[str, int]:
    """Return the options of the chosen schedule."""
    if cfg.schedule == "noam":
        return {"width": cfg.shape.d_model, "warmup": cfg.warmup}
    if cfg.schedule == "inverse_sqrt":
        return {"warmup": cfg.warmup}
    return {"steps": steps_an_epoch * cfg.epochs, "warmup": cfg.warmup}
