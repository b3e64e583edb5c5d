"""The captioner: an encoder from a picture to a grid of features, and a decoder from the grid to words.

Both are chosen by name. An encoder maps uint8 pictures (n, 3, side, side) to a grid (n, cells, channels). If the
encoder is frozen, batches contain such grids instead of pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from headway import backbones
from headway.backbones.weights import fold_batch_norm
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

# The small encoder for drawn scenes, trained from scratch together with the decoder.


class Cnn(nn.Module):
    """Separate branches for shape (convolutions over greyscale) and colour (averages over small patches).

    Both are max-pooled to a 4 × 4 grid. A shape detector that never sees colour works for every colour: with one stack
    for both, most of the combinations missing from training were named wrongly. Group normalisation uses one picture at
    a time, so nothing differs between training and inference, or between ranks.
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


# A pretrained encoder, frozen until fine-tuning starts.


class PretrainedEncoder(nn.Module):
    """Maps uint8 pictures (n, 3, side, side) to a grid (n, cells, channels)."""

    def __init__(self, cfg: Config, *, weights: bool = True) -> None:
        super().__init__()
        chosen = cfg.weights if weights and cfg.weights != "none" else None
        self.net = backbones.build(cfg.encoder, weights=chosen)
        self.net.freeze("all")
        self.channels = self.net.channels
        self.cells = (-(-cfg.side // self.net.stride)) ** 2
        self._fast: list[backbones.Encoder] = []  # in a list to keep it out of the state dict

    def forward(self, pictures: Tensor) -> Tensor:
        if self.net.frozen == "all":
            with torch.no_grad():
                return self._flat(self._frozen()(self.net.normalised(pictures)))
        return self._flat(self.net(self.net.normalised(pictures)))

    def learn(self) -> None:
        """Start fine-tuning the weights; batch-norm statistics stay as published."""
        self._fast.clear()
        self.net.freeze("norms")

    def _load_from_state_dict(self, *given: Any) -> None:
        self._fast.clear()
        super()._load_from_state_dict(*given)

    def _frozen(self) -> backbones.Encoder:
        """Return a copy with folded batch norm, twice as fast. Built on first use, once the weights are final."""
        if not self._fast:
            self._fast.append(fold_batch_norm(self.net))
        return self._fast[0]

    @staticmethod
    def _flat(grid: Tensor) -> Tensor:
        return grid.flatten(2).transpose(1, 2)


# To add a decoder: write a class, add its name to the config's Literal, and add a line here. Sorted.
DECODERS: Final[dict[str, Callable[[Config, int, int, int], Decoder]]] = {
    "attention": AttentionDecoder,
    "glimpse": GlimpseDecoder,
    "lstm": LstmDecoder,
    "transformer": TransformerDecoder,
}


class Captioner(nn.Module):
    """Encoder, decoder and vocabulary. The state dict includes the words, without which the weights are useless."""

    def __init__(self, cfg: Config, vocabulary: Vocabulary, *, fresh: bool = True) -> None:
        """`fresh`: load the encoder's pretrained weights. Not needed if all weights are loaded from elsewhere."""
        super().__init__()
        self.vocabulary = vocabulary
        self.label_smoothing = cfg.label_smoothing
        self.encoder: Any = Cnn(cfg) if cfg.encoder == "cnn" else PretrainedEncoder(cfg, weights=fresh)
        self.decoder = DECODERS[cfg.decoder](cfg, len(vocabulary), self.encoder.cells, self.encoder.channels)

    def see(self, pictures: Tensor) -> Tensor:
        """Encode pictures, or each of their views, to grids.

        Floating-point input is already a grid and is returned as such.
        """
        if pictures.is_floating_point():
            return pictures.float()
        if pictures.dim() == 5:
            seen: Tensor = self.encoder(pictures.flatten(0, 1))
            return seen.reshape(*pictures.shape[:2], *seen.shape[1:])
        grid: Tensor = self.encoder(pictures)
        return grid

    def forward(self, pictures: Tensor, captions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summed loss of `captions` (pictures, captions each, length), and its number of words."""
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
                f"the weights' vocabulary of {len(state)} words differs from the {len(self.vocabulary)} of this data",
                fix="restore the data that the weights were trained on, or start a new run",
            )


def rebuild(cfg: Config, state: Mapping[str, Any]) -> Captioner:
    """Rebuild the captioner from its state dict, in eval mode."""
    model = Captioner(cfg, Vocabulary(state["_extra_state"]), fresh=False)
    model.load_state_dict(dict(state))
    return model.eval()
