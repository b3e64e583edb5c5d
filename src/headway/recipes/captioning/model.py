"""The captioner: an encoder that turns a picture into a grid of features, and a decoder that turns the grid into words.

Both are chosen by name. An encoder maps uint8 pictures (n, 3, side, side) to a grid (n, cells, channels). Where the
encoder is frozen, batches bring such grids instead of pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from headway import backbones
from headway.backbones.weights import folded
from headway.core.errors import BadInput
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.decoders import (
    AttentionDecoder,
    Decoder,
    GlimpseDecoder,
    LstmDecoder,
    TransformerDecoder,
)
from headway.recipes.captioning.vocabulary import Vocabulary

# The small encoder for drawn scenes, trained from nothing together with the decoder.


class Cnn(nn.Module):
    """Form and colour, seen apart: a few convolutions over the grey picture, and colours averaged over small patches.

    Of both, the strongest answer in each cell of a 4 by 4 grid is kept. A form detector that never meets a colour works
    on every colour: with one stack for both, most of the combinations that training lacked were named wrongly.
    Group normalisation looks at one picture at a time: nothing differs between training and use, or between ranks.
    """

    cells = 16

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        width = cfg.width
        self.channels = 5 * width
        self.form = nn.Sequential(
            *_convolution(1, width, 5, stride=2),
            *_convolution(width, 2 * width, 3, stride=2),
            *_convolution(2 * width, 3 * width, 3),
            nn.MaxPool2d(2),
            *_convolution(3 * width, 4 * width, 3),
            nn.AdaptiveMaxPool2d(4),
        )
        self.colour = nn.Sequential(
            nn.AvgPool2d(4),
            nn.Conv2d(3, 2 * width, 1),
            nn.GELU(),
            nn.Conv2d(2 * width, width, 1),
            nn.GELU(),
            nn.AdaptiveMaxPool2d(4),
        )

    def forward(self, pictures: Tensor) -> Tensor:
        pixels = (pictures.float() - 128) / 64
        grid = torch.cat([self.form(pixels.mean(dim=1, keepdim=True)), self.colour(pixels)], dim=1)
        return grid.flatten(2).transpose(1, 2)


def _convolution(channels: int, out: int, size: int, *, stride: int = 1) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(channels, out, size, stride=stride, padding=size // 2, bias=False)
    return convolution, nn.GroupNorm(4 if out % 4 == 0 else 1, out), nn.GELU()


# An encoder with published weights, as a captioner uses it: frozen until it is told to learn.


class PretrainedEncoder(nn.Module):
    """Bytes (n, 3, side, side) to a grid (n, cells, channels)."""

    def __init__(self, cfg: Config, *, weights: bool = True) -> None:
        super().__init__()
        chosen = cfg.weights if weights and cfg.weights != "none" else None
        self.net = backbones.build(cfg.encoder, weights=chosen)
        self.net.freeze("all")
        self.channels = self.net.channels
        self.cells = (-(-cfg.side // self.net.stride)) ** 2
        self._fast: list[backbones.Encoder] = []  # in a list: not a part of the state

    def forward(self, pictures: Tensor) -> Tensor:
        if self.net.frozen == "all":
            with torch.no_grad():
                return self._flat(self._frozen()(self.net.normalised(pictures)))
        return self._flat(self.net(self.net.normalised(pictures)))

    def learn(self) -> None:
        """From now on its weights learn; the statistics of its batch normalisation stay as published."""
        self._fast.clear()
        self.net.freeze("norms")

    def _load_from_state_dict(self, *given: Any) -> None:
        self._fast.clear()
        super()._load_from_state_dict(*given)

    def _frozen(self) -> backbones.Encoder:
        """The same, twice as fast; made when first needed, when its weights are those it will keep."""
        if not self._fast:
            self._fast.append(folded(self.net))
        return self._fast[0]

    @staticmethod
    def _flat(grid: Tensor) -> Tensor:
        return grid.flatten(2).transpose(1, 2)


# A new one is a class, a name in the config's Literal, and a line here. Sorted.
DECODERS: Final[dict[str, Callable[[Config, int, int, int], Decoder]]] = {
    "attention": AttentionDecoder,
    "glimpse": GlimpseDecoder,
    "lstm": LstmDecoder,
    "transformer": TransformerDecoder,
}


class Captioner(nn.Module):
    """Encoder, decoder and vocabulary. Its state holds the words too: weights are worth nothing without them."""

    def __init__(self, cfg: Config, vocabulary: Vocabulary, *, fresh: bool = True) -> None:
        """`fresh`: with the encoder's published weights. Not where all weights are loaded from elsewhere anyway."""
        super().__init__()
        self.vocabulary = vocabulary
        self.label_smoothing = cfg.label_smoothing
        self.encoder: Any = Cnn(cfg) if cfg.encoder == "cnn" else PretrainedEncoder(cfg, weights=fresh)
        self.decoder = DECODERS[cfg.decoder](cfg, len(vocabulary), self.encoder.cells, self.encoder.channels)

    def see(self, pictures: Tensor) -> Tensor:
        """Their grid, or that of each of their views; what is a grid already is taken as it is."""
        if pictures.is_floating_point():
            return pictures.float()
        if pictures.dim() == 5:
            seen: Tensor = self.encoder(pictures.flatten(0, 1))
            return seen.reshape(*pictures.shape[:2], *seen.shape[1:])
        grid: Tensor = self.encoder(pictures)
        return grid

    def forward(self, pictures: Tensor, captions: Tensor) -> tuple[Tensor, Tensor]:
        """The summed loss of `captions` (pictures, captions each, length), and how many words it is the sum of."""
        lesson = self.decoder.learn(self.see(pictures), captions)
        loss = functional.cross_entropy(
            lesson.scores, lesson.targets, label_smoothing=self.label_smoothing, reduction="sum"
        )
        if lesson.extra is not None:
            loss = loss + lesson.extra
        return loss, loss.new_tensor(len(lesson.targets))

    def get_extra_state(self) -> list[str]:
        return list(self.vocabulary.words)

    def set_extra_state(self, state: Sequence[str]) -> None:
        if list(state) != list(self.vocabulary.words):
            raise BadInput(
                f"these weights know {len(state)} words, and they are not the {len(self.vocabulary)} of this data",
                fix="bring back the training data that they were made from, or start a new run",
            )


def rebuild(cfg: Config, state: Mapping[str, Any]) -> Captioner:
    """The captioner that `state` was taken from, ready to be asked."""
    model = Captioner(cfg, Vocabulary(state["_extra_state"]), fresh=False)
    model.load_state_dict(dict(state))
    return model.eval()
