"""Training of a grader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch

from headway.backbones import Freeze
from headway.core.errors import BadInput
from headway.recipes.grading.config import Config
from headway.recipes.grading.data import augmentation, load, prepared
from headway.recipes.grading.evaluate import validate
from headway.recipes.grading.inference import bundle
from headway.recipes.grading.model import Grader
from headway.rundir.history import BestScores
from headway.spec.model import Phase
from headway.training import Run
from headway.training.schedules import Schedule

SAMPLERS: Final = ("balanced", "uniform")


def train(run: Run, cfg: Config) -> None:
    """Train on the back alone, then on both sides, and keep the weights with the highest validation QWK."""
    cache = run.job.cache
    graded, val = (load(cfg, run.job.data, split, cache=cache) for split in ("train", "val"))
    phases, augment = run.job.phases or curriculum(cfg), augmentation(cfg)
    feeds = {phase.name: graded.feed(sampled(cfg, phase), training=True, seed=run.seed) for phase in phases}

    weights = None if cfg.weights == "none" else cfg.weights
    model = run.place(channels_last(Grader(cfg, graded.grades, weights=weights)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.phase1_lr, weight_decay=cfg.weight_decay)
    schedule = Schedule(optimizer, "plateau", patience=cfg.plateau_patience, shrink=cfg.plateau_factor)
    best = BestScores()
    run.on_export(lambda: bundle(model, cfg, run.job, best))
    run.keep_epochs(cfg.checkpoint_epochs)
    run.restore(model=model, optimizer=optimizer, schedule=schedule, best=best, data=feeds[phases[0].name])

    for phase in run.phases(phases):
        freeze_for_phase(model)
        for _ in run.epochs(phase.epochs):
            for batch in run.steps(feeds[phase.name]):
                back, front = prepared(batch, cfg, augment)
                labels = batch["label"] - int(graded.grades[0])
                with run.autocast():
                    parts = model.loss(model(back, front), labels, batch.get("targets"))
                loss_sum, count = torch.stack(list(parts.values())).sum(), len(labels)
                run.step(optimizer, loss_sum=loss_sum, weight=count, clip=cfg.clip, scheduler=schedule)
                run.log(loss=loss_sum / count, lr=schedule.lr, **{f"loss_{n}": p / count for n, p in parts.items()})
            scores = validate(run, model, cfg, val)
            schedule.record_score(scores["qwk"])
            if run.score(scores, best=phase.best or "qwk"):
                best.load_state_dict(scores)
    run.finish()


def channels_last(model: Grader) -> Grader:
    """Use channels-last weights: convolutions take a third less time."""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
    return model


def curriculum(cfg: Config) -> tuple[Phase, ...]:
    """Return the default two phases, for jobs that define none."""
    alone = ("attention.*", "back.*", "back_damage.*", "head.*")
    first = alone if cfg.views == "both" else tuple(name for name in alone if name != "back.*")
    phases = [("phase1", cfg.phase1_epochs, cfg.phase1_lr, first), ("phase2", cfg.phase2_epochs, cfg.phase2_lr, ("*",))]
    made = tuple(Phase(name=name, epochs=n, lr=lr, train=train, best="qwk") for name, n, lr, train in phases if n)
    if not made:
        raise BadInput(
            "phase1_epochs and phase2_epochs are both 0: the model would not be trained", fix="increase one of them"
        )
    return made


def sampled(cfg: Config, phase: Phase) -> Config:
    """Return the config with the phase's sampler, if it has one."""
    if phase.sampler is None:
        return cfg
    if phase.sampler not in SAMPLERS:
        raise BadInput(
            f"phase {phase.name}: there is no sampler {phase.sampler!r}",
            fix=f"choose one of {', '.join(SAMPLERS)}, or leave it out to use config.sampler",
        )
    return replace(cfg, sampler=phase.sampler)  # type: ignore[arg-type]  # one of SAMPLERS


def freeze_for_phase(model: Grader) -> None:
    """Freeze encoders without trainable parameters entirely, and use the front only if it trains."""
    for encoder in (model.back, model.front):
        if encoder is not None:
            encoder.frozen = _set_trainable([parameter.requires_grad for parameter in encoder.parameters()])
    model.look(both=model.front is not None and model.front.frozen != "all")
    model.train()


def _set_trainable(learns: Sequence[bool]) -> Freeze:
    """Choose the freeze mode.

    If only some layers train, batch norm keeps the statistics the others were trained with.
    """
    return "nothing" if all(learns) else "norms" if any(learns) else "all"
