"""Self-critical training: what scores a high CIDEr is said more often (Rennie et al., 2017).

Each picture is captioned several times at random. A caption that scores better than the picture's others becomes
likelier, one that scores worse less likely: what is rewarded is what is measured, and not the next word of a reference.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from headway.recipes.captioning.config import Config
from headway.recipes.captioning.decode import sample_to_learn
from headway.recipes.captioning.feed import Batch, Sources
from headway.recipes.captioning.model import Captioner
from headway.recipes.captioning.words import END, PAD
from headway.score.cider import Cider
from headway.score.ptb import tokenize_all

_END: Final = " <end>"  # a word like others: a caption that breaks off scores less than one that ends


class Critic:
    """Scores captions of the training pictures; the references are tokenised and counted once."""

    def __init__(self, cfg: Config, sources: Sources) -> None:
        self._samples, self._max_length = cfg.self_critical_samples, cfg.max_length
        spoken = [said for pictures in sources.pictures for said in pictures.references]
        groups = [[text + _END for text in tokenize_all(group)] for group in spoken]
        self._cider = Cider(groups)

    def loss(self, model: Captioner, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The summed loss of what is said of the batch, how many words that is, and its mean CIDEr."""
        said = sample_to_learn(model, batch.pictures, max_length=self._max_length, samples=self._samples)
        rows = batch.rows.repeat_interleave(self._samples)
        rewards = self.rewards(model, said.words, rows).to(said.log_probability.device)
        loss = -(better_than_others(rewards, self._samples) * said.log_probability).sum()
        return loss, (said.words != PAD).sum(), rewards.mean()

    def rewards(self, model: Captioner, words: Tensor, rows: Tensor) -> Tensor:
        """CIDEr of each caption against the references of its picture."""
        texts = tokenize_all([model.vocabulary.decode(row) for row in words.tolist()])
        ends = (words == END).any(dim=1).tolist()
        said = [text + _END if ended else text for text, ended in zip(texts, ends, strict=True)]
        return torch.from_numpy(self._cider.scores(said, rows.tolist())).float()


def better_than_others(rewards: Tensor, samples: int) -> Tensor:
    """How much better each caption is than the mean of its picture's others: on average nothing, whatever is said."""
    of_picture = rewards.view(-1, samples)
    others = (of_picture.sum(dim=1, keepdim=True) - of_picture) / (samples - 1)
    return (of_picture - others).flatten()
