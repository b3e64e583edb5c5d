"""Training a captioner: the loop, from top to bottom."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from headway.metrics.bleu import bleu_counts
from headway.metrics.cider import Cider
from headway.metrics.ptb_tokenizer import tokenize_all
from headway.recipes.captioning.beam_search import sample, sayable
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.data import Batch, Sources, TrainingFeed, load, seen, vocabulary
from headway.recipes.captioning.evaluate import Validation
from headway.recipes.captioning.inference import bundle
from headway.recipes.captioning.model import Captioner, PretrainedEncoder
from headway.recipes.captioning.vocabulary import END, PAD, START
from headway.training import Run

# Self-critical training: what scores a high CIDEr is said more often (Rennie et al., 2017).
#
# Each picture is captioned several times at random. A caption that scores better than the picture's others becomes
# likelier, one that scores worse less likely: what is rewarded is what is measured, and not the next word of a
# reference. Captions are drawn word by word without gradients and then learnt from all at once, as references are.
# The decoder is in eval mode for both: with dropout it would judge other words than it drew. They are drawn at a low
# temperature: a model that has learnt with smoothed labels says a word that makes no sense in most captions drawn as
# they come.


_END: Final = " <end>"  # a word like others: a caption that breaks off scores less than one that ends


class SelfCriticalLoss:
    """Scores captions of the training pictures; the references are tokenised and counted once."""

    def __init__(self, cfg: Config, sources: Sources) -> None:
        self._samples, self._max_length = cfg.self_critical_samples, cfg.max_length
        self._temperature, self._bleu = cfg.self_critical_temperature, cfg.self_critical_bleu
        spoken = [said for pictures in sources.pictures for said in pictures.references]
        groups = [[text + _END for text in tokenize_all(group)] for group in spoken]
        self._cider = Cider(groups)

    def loss(self, model: Captioner, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The summed loss of what is said of the batch, how many words that is, and its mean reward."""
        model.decoder.eval()
        grid = model.see(batch.pictures)
        words = self._drawn(model, grid.detach())
        rewards = self.rewards(model, words, batch.rows.repeat_interleave(self._samples)).to(grid.device)
        begun = torch.cat([words.new_full((len(words), 1), START), words[:, : int((words != PAD).sum(dim=1).max())]], 1)
        lesson = model.decoder.learn(grid, begun.view(len(grid), self._samples, -1))
        scores = sayable(lesson.scores) / self._temperature  # what is learnt is what was drawn from
        gains = scores.log_softmax(dim=1).gather(1, lesson.targets[:, None])[:, 0]
        loss = -(better_than_others(rewards, self._samples)[lesson.captions] * gains).sum()
        return loss, loss.new_tensor(len(gains)), rewards.mean()

    def _drawn(self, model: Captioner, grid: Tensor) -> Tensor:
        """Words of `samples` captions of each picture, as a tensor that can be learnt from."""
        found = sample(model, grid, max_length=self._max_length, samples=self._samples, temperature=self._temperature)
        return found.words.clone()

    def rewards(self, model: Captioner, words: Tensor, rows: Tensor) -> Tensor:
        """CIDEr of each caption against the references of its picture, and its own BLEU-4 where that counts too."""
        texts = tokenize_all([model.vocabulary.decode(row) for row in words.tolist()])
        ends = (words == END).any(dim=1).tolist()
        said = [text + _END if ended else text for text, ended in zip(texts, ends, strict=True)]
        read = self._cider.references.read(said, rows.tolist())
        found = self._cider.scores_of(read)
        if self._bleu:
            found = found + self._bleu * bleu_counts(self._cider.references, read).each()[:, 3]
        return torch.from_numpy(found).float()


def better_than_others(rewards: Tensor, samples: int) -> Tensor:
    """How much better each caption is than the mean of its picture's others: on average nothing, whatever is said."""
    of_picture = rewards.view(-1, samples)
    others = (of_picture.sum(dim=1, keepdim=True) - of_picture) / (samples - 1)
    return (of_picture - others).flatten()


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
        critic = SelfCriticalLoss(cfg, feed.sources)
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
    if not isinstance(model.encoder, PretrainedEncoder):
        return [{"params": list(model.parameters()), "lr": lr}]
    groups = [{"params": list(model.decoder.parameters()), "lr": lr}]
    if cfg.finetune_from is not None:
        groups.append({"params": list(model.encoder.parameters()), "lr": lr * cfg.finetune_rate})
    return groups


def _prepare(cfg: Config, model: Captioner, epoch: int) -> None:
    """What changes from epoch to epoch. A function of the epoch alone, so that a resumed run does the same."""
    model.train()
    if isinstance(model.encoder, PretrainedEncoder) and cfg.finetune_from is not None and epoch >= cfg.finetune_from:
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
