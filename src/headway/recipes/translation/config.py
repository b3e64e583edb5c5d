"""The settings of the translation recipe. Plain types: read by the job file's loader, so nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal, NamedTuple

from headway.spec.renamed import FormerKey, Renamed

Count = Annotated[int, ">= 1"]
Share = Annotated[float, ">= 0", "< 1"]


class Shape(NamedTuple):
    """How large a Transformer is."""

    encoder_layers: int
    decoder_layers: int
    d_model: int  # numbers a token
    dim_feedforward: int  # numbers in the middle of a feed-forward layer
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

    # layers, d_model, dim_feedforward and heads: 4+4, 128, 512, 8 if small
    model_size: Literal["tiny", "small", "medium", "base"] = "small"
    encoder_layers: Count | None = None  # instead of the size's own, as are the next four
    decoder_layers: Count | None = None  # that write
    d_model: Annotated[int, ">= 8"] | None = None  # numbers a token
    dim_feedforward: Count | None = None  # numbers in the middle of a feed-forward layer
    heads: Count | None = None  # that attend side by side
    norm: Literal["pre", "post"] = "pre"  # where layers are normalised: before each (steadier), or after, as in 2017
    positions: Literal["sinusoidal", "rotary"] = "rotary"  # how a token knows its place
    tied: bool = True  # one table of tokens for reading, writing and scoring
    subwords: Annotated[int, ">= 260"] = 1000  # of the made-up language; prepared data brings its own
    max_length: Count = 100  # tokens of a sentence; longer pairs are left out of training

    epochs: Count = 12  # passes over the sentences
    batch_tokens: Count = 2048  # a step, over all ranks: sentences × the longest of them, of either side
    accumulate: Count = 1  # parts a step is computed in, where memory is short
    lr: Annotated[float, "> 0"] = 3e-3  # the highest rate; with noam a factor of it: 1 is the paper's
    schedule: Literal["noam", "inverse_sqrt", "cosine", "linear"] = "inverse_sqrt"  # how it falls after the warm-up
    warmup: Count = 400  # steps in which it rises
    weight_decay: Annotated[float, ">= 0"] = 0.0  # of AdamW
    clip: Annotated[float, "> 0"] = 1.0  # largest norm of a step's gradient
    dropout: Share = 0.1  # of each layer's answer
    attention_dropout: Share = 0.0  # of where it attends to; above 0 there is no fused attention on a CPU
    label_smoothing: Share = 0.1  # spread evenly over all subwords, as torch does
    # what is scored and exported is an exponential moving average of the weights; 0 is none
    ema_decay: Share = 0.998

    beam: Count = 5  # translations kept in the running when one is searched; 1 is greedy
    length_penalty: Annotated[float, ">= 0"] = 1.0  # a translation's score is its log-probability / tokens ^ this
    score_every: Count = 1  # epochs between two validations
    patience: Count | None = None  # validations without a better one that end the training

    train_samples: Count = 8000  # how many sentences are made up for training …
    val_samples: Count = 300  # … for choosing the best checkpoint …
    test_samples: Count = 500  # … and for `headway eval`

    RENAMED: ClassVar[Mapping[str, FormerKey]] = {
        "average": Renamed("ema_decay"),
        "inner": Renamed("dim_feedforward"),
        "size": Renamed("model_size"),
        "test_pairs": Renamed("test_samples"),
        "tokens": Renamed("batch_tokens"),
        "train_pairs": Renamed("train_samples"),
        "val_pairs": Renamed("val_samples"),
        "width": Renamed("d_model"),
    }

    @property
    def shape(self) -> Shape:
        """The size's, with what was said instead."""
        own = SIZES[self.model_size]
        return Shape(*(getattr(self, name) or getattr(own, name) for name in Shape._fields))
