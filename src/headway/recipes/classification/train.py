"""Training of a classifier."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from headway.recipes.classification.config import Config
from headway.recipes.classification.data import Labelled, augmentation, check_classes, load
from headway.recipes.classification.evaluate import validate
from headway.recipes.classification.inference import bundle
from headway.recipes.classification.model import Classifier
from headway.rundir.history import BestScores
from headway.training import Run
from headway.training.schedules import Schedule


def train(run: Run, cfg: Config) -> None:
    """Train on the training pictures, and keep the weights with the best validation accuracy."""
    pictures = load(cfg, run.job.data, "train", cache=run.job.cache)
    val = load(cfg, run.job.data, "val", cache=run.job.cache)
    check_classes(pictures.classes, val)
    feed, augment = pictures.training(cfg, seed=run.seed), augmentation(cfg)

    model = run.place(Classifier(cfg, pictures.classes))
    encoder_share = 1.0 if cfg.model == "alexnet" or cfg.weights == "none" else cfg.encoder_lr_factor
    groups = model.parameter_groups(cfg.lr, encoder_share)
    optimizer = torch.optim.AdamW(list(groups), weight_decay=cfg.weight_decay, fused=True)
    schedule = Schedule(optimizer, cfg.schedule, **schedule_options(cfg, len(feed)))
    counted = class_weights(cfg, pictures).to(run.device)
    best = BestScores()
    run.on_export(lambda: bundle(model, cfg, run.job, best))
    run.restore(model=model, optimizer=optimizer, schedule=schedule, best=best, data=feed)

    for _ in run.epochs(cfg.epochs):
        for batch in run.steps(feed):
            augmented = augment.apply(batch["picture"], batch["draws"])
            with run.autocast():
                loss_sum, weight = loss_of(model(augmented), batch["label"], counted, cfg.label_smoothing)
            run.step(optimizer, loss_sum=loss_sum, weight=weight, clip=cfg.clip, scheduler=schedule)
            run.log(loss=loss_sum / weight, lr=schedule.lr)
        found = validate(run, model, cfg, val)
        if run.score(found, best="accuracy", patience=cfg.patience):
            best.update(found)
    run.finish()


def loss_of(scores: Tensor, labels: Tensor, counted: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the summed loss, weighted by class, and the sum of the weights."""
    each = functional.cross_entropy(scores, labels, label_smoothing=smoothing, reduction="none")
    weight = counted[labels]
    return (each * weight).sum(), weight.sum()


def class_weights(cfg: Config, read: Labelled) -> Tensor:
    """Return class weights: all 1, or ∝ 1 / (pictures of the class) ^ balance with mean 1 over the pictures."""
    count = np.bincount(read.labels(), minlength=len(read.classes))
    if not cfg.class_weights:
        return torch.ones(len(count))
    raw = np.where(count > 0, 1 / np.maximum(count, 1) ** cfg.balance, 0.0)
    return torch.from_numpy(raw * count.sum() / (raw * count).sum()).float()


def schedule_options(cfg: Config, steps_an_epoch: int) -> dict[str, int]:
    """Return the options of the chosen schedule."""
    steps = steps_an_epoch * cfg.epochs
    if cfg.schedule == "one_cycle":
        return {"steps": steps}
    return {"warmup": cfg.warmup} if cfg.schedule == "constant" else {"steps": steps, "warmup": cfg.warmup}
