"""The captioner: an encoder that turns a picture into a grid of features, and a decoder that turns the grid into words.

Both are chosen by name. An encoder maps uint8 pictures (n, 3, side, side) to a grid (n, cells, channels). Where the
encoder is frozen, batches bring such grids instead of pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from torch import Tensor, nn
from torch.nn import functional

from headway.errors import BadInput
from headway.recipes.captioning.attend import AttentionDecoder
from headway.recipes.captioning.cnn import Cnn
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.decoders import Decoder, GlimpseDecoder, LstmDecoder
from headway.recipes.captioning.published import Published
from headway.recipes.captioning.transformer import TransformerDecoder
from headway.recipes.captioning.words import Vocabulary

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
        self.encoder: Any = Cnn(cfg) if cfg.encoder == "cnn" else Published(cfg, weights=fresh)
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
