"""Self-critical training: what scores a high CIDEr is said more often (Rennie et al., 2017).

Each picture is captioned several times at random. A caption that scores better than the picture's others becomes
likelier, one that scores worse less likely: what is rewarded is what is measured, and not the next word of a reference.
Captions are drawn word by word without gradients and then learnt from all at once, as references are. The decoder is
in eval mode for both: with dropout it would judge other words than it drew. They are drawn at a low temperature: a
model that has learnt with smoothed labels says a word that makes no sense in most captions drawn as they come.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from headway.recipes.captioning.config import Config
from headway.recipes.captioning.decode import sample, sayable
from headway.recipes.captioning.feed import Batch, Sources
from headway.recipes.captioning.model import Captioner
from headway.recipes.captioning.words import END, PAD, START
from headway.score.bleu import bleu_counts
from headway.score.cider import Cider
from headway.score.ptb import tokenize_all

_END: Final = " <end>"  # a word like others: a caption that breaks off scores less than one that ends


class Critic:
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
