"""The settings of the translation recipe. Imports nothing heavy, because the job file's loader reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal, NamedTuple

from headway.spec.renamed import FormerKey, Renamed

Count = Annotated[int, ">= 1"]
Share = Annotated[float, ">= 0", "< 1"]


class Shape(NamedTuple):
    """Dimensions of a Transformer."""

    encoder_layers: int
    decoder_layers: int
    d_model: int
    dim_feedforward: int
    heads: int


# `small` trains on a laptop; `base` is the base model of "Attention Is All You Need".
SIZES: Final[dict[str, Shape]] = {
    "tiny": Shape(2, 2, 64, 256, 4),
    "small": Shape(4, 4, 128, 512, 8),
    "medium": Shape(3, 3, 256, 1024, 8),
    "base": Shape(6, 6, 512, 2048, 8),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Settings of a translator, its training and its search. The defaults learn the made-up language in minutes."""

    # layers, d_model, dim_feedforward and heads: 4+4, 128, 512, 8 if small
    model_size: Literal["tiny", "small", "medium", "base"] = "small"
    encoder_layers: Count | None = None  # overrides model_size, as do the next four
    decoder_layers: Count | None = None  # decoder layers
    d_model: Annotated[int, ">= 8"] | None = None  # size of a token's representation
    dim_feedforward: Count | None = None  # hidden size of the feed-forward layers
    heads: Count | None = None  # attention heads
    norm: Literal["pre", "post"] = "pre"  # layer norm before each layer (more stable), or after it, as in the paper
    positions: Literal["sinusoidal", "rotary"] = "rotary"  # positional encoding
    tied: bool = True  # share one embedding table between encoder, decoder and output layer
    subwords: Annotated[int, ">= 260"] = 1000  # size of the made-up language's vocabulary; prepared data has its own
    max_length: Count = 100  # tokens per sentence; training leaves longer pairs out

    epochs: Count = 12  # passes over the sentences
    batch_tokens: Count = 2048  # tokens per step, over all ranks: sentences × length of the longest, source or target
    accumulate: Count = 1  # micro-batches per step, to save memory
    lr: Annotated[float, "> 0"] = 3e-3  # the highest learning rate; with noam a factor, 1 as in the paper
    schedule: Literal["noam", "inverse_sqrt", "cosine", "linear"] = "inverse_sqrt"  # decay after the warm-up
    warmup: Count = 400  # warm-up steps
    weight_decay: Annotated[float, ">= 0"] = 0.0  # AdamW's weight decay
    clip: Annotated[float, "> 0"] = 1.0  # largest gradient norm
    dropout: Share = 0.1  # dropout of each layer's output
    attention_dropout: Share = 0.0  # dropout of attention weights; above 0, attention on a CPU is not fused
    label_smoothing: Share = 0.1  # label smoothing, as in torch
    # decay of the exponential moving average of the weights, which is scored and exported; 0: no average
    ema_decay: Share = 0.998

    beam: Count = 5  # beam size of the search for a translation; 1: greedy
    length_penalty: Annotated[float, ">= 0"] = 1.0  # a hypothesis scores log-probability / tokens ^ length_penalty
    score_every: Count = 1  # epochs between validations
    patience: Count | None = None  # early stopping: validations without improvement before training ends

    train_samples: Count = 8000  # generated sentences for training …
    val_samples: Count = 300  # … for validation …
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
        """Return the dimensions of `model_size`, with the overrides applied."""
        own = SIZES[self.model_size]
        return Shape(*(getattr(self, name) or getattr(own, name) for name in Shape._fields))


def sizes(cfg: Config) -> dict[str, int]:
    """Return the model's sizes, from which the training time is estimated."""
    return cfg.shape._asdict()
