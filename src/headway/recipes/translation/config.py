"""The settings of the translation recipe. Plain types: read by the job file's loader, so nothing heavy is imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, NamedTuple

Count = Annotated[int, ">= 1"]
Share = Annotated[float, ">= 0", "< 1"]


class Shape(NamedTuple):
    """How large a Transformer is."""

    encoder_layers: int
    decoder_layers: int
    width: int  # numbers a token
    inner: int  # numbers in the middle of a feed-forward layer
    heads: int


# `small` is the size that trains on a laptop; `base` that of the Transformer's paper.
SIZES: Final[dict[str, Shape]] = {
    "tiny": Shape(2, 2, 64, 256, 4),
    "small": Shape(4, 4, 128, 512, 8),
    "medium": Shape(3, 3, 256, 1024, 8),
    "base": Shape(6, 6, 512, 2048, 8),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """How a translator is built, trained and asked. The defaults learn the made-up language in minutes on two cores."""

    size: Literal["tiny", "small", "medium", "base"] = "small"  # layers, width, inner and heads: 4+4, 128, 512, 8
    encoder_layers: Count | None = None  # instead of the size's own, as are the next four
    decoder_layers: Count | None = None  # that write
    width: Annotated[int, ">= 8"] | None = None  # numbers a token
    inner: Count | None = None  # numbers in the middle of a feed-forward layer
    heads: Count | None = None  # that attend side by side
    norm: Literal["pre", "post"] = "pre"  # where layers are normalised: before each (steadier), or after, as in 2017
    positions: Literal["sinusoidal", "rotary"] = "rotary"  # how a token knows its place
    tied: bool = True  # one table of tokens for reading, writing and scoring
    subwords: Annotated[int, ">= 260"] = 1000  # of the made-up language; prepared data brings its own
    max_length: Count = 100  # tokens of a sentence; longer pairs are left out of training

    epochs: Count = 12  # passes over the sentences
    tokens: Count = 2048  # a step, over all ranks: sentences × the longest of them, of either side
    accumulate: Count = 1  # parts a step is computed in, where memory is short
    lr: Annotated[float, "> 0"] = 3e-3  # the highest rate; with noam a factor of it: 1 is the paper's
    schedule: Literal["noam", "inverse_sqrt", "cosine", "linear"] = "inverse_sqrt"  # how it falls after the warm-up
    warmup: Count = 400  # steps in which it rises
    weight_decay: Annotated[float, ">= 0"] = 0.0  # of AdamW
    clip: Annotated[float, "> 0"] = 1.0  # largest norm of a step's gradient
    dropout: Share = 0.1  # of each layer's answer
    attention_dropout: Share = 0.0  # of where it attends to; above 0 there is no fused attention on a CPU
    label_smoothing: Share = 0.1  # spread evenly over all subwords, as torch does
    average: Share = 0.998  # what is scored and exported is a running average of the weights; 0 is none

    beam: Count = 5  # translations kept in the running when one is searched; 1 is greedy
    length_penalty: Annotated[float, ">= 0"] = 1.0  # a translation's score is its log-probability / tokens ^ this
    score_every: Count = 1  # epochs between two validations
    patience: Count | None = None  # validations without a better one that end the training

    train_pairs: Count = 8000  # how many sentences are made up for training …
    val_pairs: Count = 300  # … for choosing the best checkpoint …
    test_pairs: Count = 500  # … and for `headway eval`

    @property
    def shape(self) -> Shape:
        """The size's, with what was said instead."""
        own = SIZES[self.size]
        return Shape(*(getattr(self, name) or getattr(own, name) for name in Shape._fields))
