"""Training of a captioner, including self-critical sequence training (SCST)."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from headway.metrics.bleu import bleu_counts
from headway.metrics.captions import Cider
from headway.metrics.ptb_tokenizer import tokenize_all
from headway.recipes.captioning.beam_search import mask_special, sample
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.data import Batch, Sources, TrainingFeed, encoded_views, load, vocabulary
from headway.recipes.captioning.evaluate import Validation
from headway.recipes.captioning.inference import bundle
from headway.recipes.captioning.model import Captioner, PretrainedEncoder
from headway.recipes.captioning.vocabulary import END, PAD, START
from headway.rundir.history import BestScores
from headway.training import Run

# Self-critical sequence training


_END: Final = " <end>"  # counts as a word, so that a truncated caption scores less than one that ends


class SelfCriticalLoss:
    """Self-critical sequence training with a CIDEr reward (Rennie et al., 2017).

    Several captions are sampled per picture. A caption that scores better than the picture's others becomes likelier,
    one that scores worse less likely: this optimizes the metric itself instead of the next word of a reference.
    Captions are sampled word by word without gradients, then trained on all at once, as references are. The references
    are tokenised and counted once.

    The decoder is in eval mode for both: with dropout it would score other words than it sampled. The sampling
    temperature is low: a model trained with label smoothing would otherwise put a nonsensical word into most samples.
    """

    def __init__(self, cfg: Config, sources: Sources) -> None:
        self._samples, self._max_length = cfg.self_critical_samples, cfg.max_length
        self._temperature, self._bleu = cfg.self_critical_temperature, cfg.self_critical_bleu
        spoken = [said for pictures in sources.pictures for said in pictures.references]
        groups = [[text + _END for text in tokenize_all(group)] for group in spoken]
        self._cider = Cider(groups)

    def loss(self, model: Captioner, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the summed loss of captions sampled for the batch, their number of words, and the mean reward."""
        model.decoder.eval()
        grid = model.see(batch.pictures)
        words = self._drawn(model, grid.detach())
        rewards = self.rewards(model, words, batch.rows.repeat_interleave(self._samples)).to(grid.device)
        begun = torch.cat([words.new_full((len(words), 1), START), words[:, : int((words != PAD).sum(dim=1).max())]], 1)
        lesson = model.decoder.learn(grid, begun.view(len(grid), self._samples, -1))
        scores = mask_special(lesson.scores) / self._temperature  # the loss uses the distribution that was sampled from
        gains = scores.log_softmax(dim=1).gather(1, lesson.targets[:, None])[:, 0]
        loss = -(advantages(rewards, self._samples)[lesson.captions] * gains).sum()
        return loss, loss.new_tensor(len(gains)), rewards.mean()

    def _drawn(self, model: Captioner, grid: Tensor) -> Tensor:
        """Sample `samples` captions per picture. Returns a clone, because inference tensors cannot be trained on."""
        found = sample(model, grid, max_length=self._max_length, samples=self._samples, temperature=self._temperature)
        return found.words.clone()

    def rewards(self, model: Captioner, words: Tensor, rows: Tensor) -> Tensor:
        """Return the CIDEr of each caption against its picture's references, plus its weighted BLEU-4 if configured."""
        texts = tokenize_all([model.vocabulary.decode(row) for row in words.tolist()])
        ends = (words == END).any(dim=1).tolist()
        said = [text + _END if ended else text for text, ended in zip(texts, ends, strict=True)]
        read = self._cider.references.read(said, rows.tolist())
        found = self._cider.scores_of(read)
        if self._bleu:
            found = found + self._bleu * bleu_counts(self._cider.references, read).each()[:, 3]
        return torch.from_numpy(found).float()


def advantages(rewards: Tensor, samples: int) -> Tensor:
    """Return each caption's reward minus the mean of its picture's others (leave-one-out baseline): zero on average."""
    of_picture = rewards.view(-1, samples)
    others = (of_picture.sum(dim=1, keepdim=True) - of_picture) / (samples - 1)
    return (of_picture - others).flatten()


def train(run: Run, cfg: Config) -> None:
    """Train on the training pictures, and keep the weights with the best validation score."""
    pictures, val = (load(cfg, run.job.data, split, cache=run.job.cache) for split in ("train", "val"))
    words = vocabulary(cfg, pictures)
    model = run.place(Captioner(cfg, words))
    average = run.average(model, cfg.ema_decay) if cfg.ema_decay else None
    look = partial(
        encoded_views, model.encoder, cache=run.job.cache, learns=cfg.finetune_from is not None, device=run.device
    )
    feed = TrainingFeed(cfg, look(pictures, mirrored=cfg.mirror), words, seed=run.seed)
    validation = Validation(cfg, look(val, mirrored=cfg.both_sides))  # the same features that `headway eval` will use

    optimizer = torch.optim.AdamW(
        _groups(cfg, model, cfg.lr), betas=(0.9, 0.98), weight_decay=cfg.weight_decay, fused=True
    )
    clip_norm = torch.optim.AdamW(_groups(cfg, model, cfg.self_critical_lr), weight_decay=0.0, fused=True)
    calm = LambdaLR(clip_norm, warmup_cosine(len(feed) * cfg.self_critical_epochs, warmup=0))
    later = {"careful": clip_norm, "calm": calm} if cfg.self_critical_epochs else {}
    steps = len(feed) * cfg.epochs
    schedule = LambdaLR(optimizer, warmup_cosine(steps, cfg.warmup_steps(steps)))
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
            with run.autocast():
                loss_sum, count = model(batch.pictures, batch.captions)
            run.step(optimizer, loss_sum=loss_sum, weight=count, clip=cfg.clip, scheduler=schedule)
            run.log(loss=loss_sum / count, lr=schedule.get_last_lr()[0])
        judge()
    if cfg.self_critical_epochs:
        critic = SelfCriticalLoss(cfg, feed.sources)
        for epoch in run.epochs(cfg.self_critical_epochs):
            _prepare(cfg, model, cfg.epochs + epoch)
            for batch in run.steps(feed):
                with run.autocast():
                    loss_sum, count, reward = critic.loss(model, batch)
                run.step(clip_norm, loss_sum=loss_sum, weight=count, clip=cfg.clip, scheduler=calm)
                run.log(loss=loss_sum / count, reward=reward, lr=calm.get_last_lr()[0])
            judge()
    run.finish()


def _groups(cfg: Config, model: Captioner, lr: float) -> list[dict[str, Any]]:
    """Return parameter groups: a pretrained encoder has a lower learning rate, or none."""
    if not isinstance(model.encoder, PretrainedEncoder):
        return [{"params": list(model.parameters()), "lr": lr}]
    groups = [{"params": list(model.decoder.parameters()), "lr": lr}]
    if cfg.finetune_from is not None:
        groups.append({"params": list(model.encoder.parameters()), "lr": lr * cfg.encoder_lr_factor})
    return groups


def _prepare(cfg: Config, model: Captioner, epoch: int) -> None:
    """Set what changes between epochs. Depends on the epoch alone, so that a resumed run does the same."""
    model.train()
    if isinstance(model.encoder, PretrainedEncoder) and cfg.finetune_from is not None and epoch >= cfg.finetune_from:
        model.encoder.learn()
    model.decoder.own_words = (1 - cfg.teacher_forcing) * min(1.0, epoch / max(1, cfg.epochs - 1))


def warmup_cosine(steps: int, warmup: int) -> Callable[[int], float]:
    """Return the learning-rate factor: linear warm-up in `warmup` steps, then cosine decay to 0.01."""
    rising = max(1, warmup)

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        done = min(1.0, (step - rising) / max(1, steps - rising))
        return 0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2

    return factor
