"""The captioner: an encoder that turns a picture into a grid of features, and a decoder that turns the grid into words.

Both are chosen by name. An encoder maps uint8 pictures (n, 3, side, side) to a grid (n, cells, channels). A decoder
predicts the next word for rows of words: row r of `rows` belongs to picture r // (rows // n), so that the captions of
one picture, in training as in a beam search, share its grid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from headway.errors import BadInput
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.words import PAD, START, UNKNOWN, Vocabulary


class Memory(NamedTuple):
    """What a decoder carries from word to word: `view` is of a picture, `hidden` and `cell` are of a row."""

    view: tuple[Tensor, ...]
    hidden: Tensor
    cell: Tensor

    def of(self, rows: Tensor) -> Memory:
        """The memory of other rows of the same pictures: what a beam search does when it drops and doubles captions."""
        return Memory(self.view, self.hidden[rows], self.cell[rows])


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


class Decoder(nn.Module):
    """The part that all decoders share: words in, one LSTM over them, scores for the next word out."""

    def __init__(self, cfg: Config, words: int, seen: int) -> None:
        super().__init__()
        self.word_dropout = cfg.word_dropout
        self.embedding = nn.Embedding(words, cfg.embedding, padding_idx=PAD)
        self.lstm = nn.LSTM(cfg.embedding + seen, cfg.hidden, batch_first=True)
        with torch.no_grad():  # it starts out remembering: torch's own start forgets half at every word
            self.lstm.get_parameter("bias_ih_l0")[cfg.hidden : 2 * cfg.hidden] = 1.0
        self.dropout = nn.Dropout(cfg.dropout)

    def start(self, grid: Tensor, rows: int) -> Memory:
        """Before the first word of `rows` captions."""
        nothing = grid.new_zeros(rows, self.lstm.hidden_size)
        return Memory(self.see(grid), nothing, nothing)

    def forward(self, words: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Scores of the word after each of `words` (rows, length), and what is remembered at the end."""
        state = (memory.hidden[None].contiguous(), memory.cell[None].contiguous())
        said, (hidden, cell) = self.lstm(self.given(self._forgetful(words), memory.view), state)
        return self.answer(said, memory.view), Memory(memory.view, hidden[0], cell[0])

    def see(self, grid: Tensor) -> tuple[Tensor, ...]:
        """What of a picture is needed at every word, computed once."""
        raise NotImplementedError

    def given(self, words: Tensor, view: tuple[Tensor, ...]) -> Tensor:
        """What the LSTM reads at each word."""
        raise NotImplementedError

    def answer(self, said: Tensor, view: tuple[Tensor, ...]) -> Tensor:
        """Scores of the next word, from the LSTM's output at each."""
        raise NotImplementedError

    def _forgetful(self, words: Tensor) -> Tensor:
        """While learning, hide some of the words: guessing the next one from them must not be enough."""
        if not (self.training and self.word_dropout):
            return words
        hide = (torch.rand(words.shape, device=words.device) < self.word_dropout) & (words != START)
        return words.masked_fill(hide, UNKNOWN)


class LstmDecoder(Decoder):
    """The whole picture as one vector, beside the word, at every step."""

    def __init__(self, cfg: Config, words: int, cells: int, channels: int) -> None:
        super().__init__(cfg, words, seen=cfg.hidden)
        self.look = nn.Linear(cells * channels, cfg.hidden)
        self.score = nn.Linear(cfg.hidden, words)

    def see(self, grid: Tensor) -> tuple[Tensor, ...]:
        return (torch.relu(self.look(grid.flatten(1))),)

    def given(self, words: Tensor, view: tuple[Tensor, ...]) -> Tensor:
        picture = view[0].repeat_interleave(len(words) // len(view[0]), dim=0)
        picture = picture[:, None].expand(-1, words.shape[1], -1)
        return torch.cat([self.embedding(words), self.dropout(picture)], dim=2)

    def answer(self, said: Tensor, view: tuple[Tensor, ...]) -> Tensor:
        scores: Tensor = self.score(self.dropout(said))
        return scores


class AttentionDecoder(Decoder):
    """The LSTM reads the words alone; at each it chooses where to look, and what is seen there adds to the scores.

    Language and sight meet in a sum and nowhere else, and language speaks through a few numbers (`syntax`): enough to
    say that a shape comes next, too few to learn by heart which colour goes with which. Two more places to look at
    stand for the whole picture and for nowhere. As the LSTM does not wait for what is seen, all words of a batch are
    computed at once.
    """

    SHARPNESS: Final = 4.0  # of the first looks: attention that starts out even over all cells learns very slowly

    def __init__(self, cfg: Config, words: int, cells: int, channels: int) -> None:
        super().__init__(cfg, words, seen=0)
        self.heads, self.size = cfg.heads, max(8, cfg.hidden // cfg.heads // 8 * 8)
        width = self.heads * self.size
        self.place = nn.Parameter(torch.randn(cells, channels) * 0.1)
        self.whole = nn.Linear(channels, channels)
        self.nowhere = nn.Parameter(torch.zeros(channels))
        self.key, self.value = nn.Linear(channels, width), nn.Linear(channels, width)
        self.query = nn.Linear(cfg.hidden, width)
        self.language = _narrow(cfg.hidden, cfg.syntax, words)
        self.sight = nn.Linear(width, words, bias=False)

    def see(self, grid: Tensor) -> tuple[Tensor, ...]:
        whole = self.whole(grid.amax(dim=1, keepdim=True))
        nowhere = self.nowhere.expand(len(grid), 1, -1)
        places = torch.cat([grid + self.place, whole, nowhere], dim=1)
        return self._by_head(self.key(places)), self._by_head(self.value(places))

    def given(self, words: Tensor, view: tuple[Tensor, ...]) -> Tensor:
        embedded: Tensor = self.embedding(words)
        return embedded

    def answer(self, said: Tensor, view: tuple[Tensor, ...]) -> Tensor:
        keys, values = view
        rows, length, _ = said.shape
        asked = self._by_head(self.query(said).view(len(keys), rows // len(keys) * length, -1)) * self.SHARPNESS
        found = functional.scaled_dot_product_attention(asked, keys, values)
        seen = found.transpose(1, 2).reshape(rows, length, -1)
        scores: Tensor = self.sight(self.dropout(seen)) + self.language(self.dropout(said))
        return scores

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, self.size).transpose(1, 2)


def _narrow(given: int, between: int, out: int) -> nn.Module:
    """A linear map of rank `between`; of full rank where that is 0."""
    if not between:
        return nn.Linear(given, out)
    return nn.Sequential(nn.Linear(given, between, bias=False), nn.Linear(between, out))


# A new one is a class here, a name in the config's Literal, and a line here. Sorted.
ENCODERS: Final[dict[str, Callable[[Config], Any]]] = {"cnn": Cnn}
DECODERS: Final[dict[str, Callable[[Config, int, int, int], Decoder]]] = {
    "attention": AttentionDecoder,
    "lstm": LstmDecoder,
}


class Captioner(nn.Module):
    """Encoder, decoder and vocabulary. Its state holds the words too: weights are worth nothing without them."""

    def __init__(self, cfg: Config, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.label_smoothing = cfg.label_smoothing
        self.encoder = ENCODERS[cfg.encoder](cfg)
        self.decoder = DECODERS[cfg.decoder](cfg, len(vocabulary), self.encoder.cells, self.encoder.channels)

    def forward(self, pictures: Tensor, captions: Tensor) -> tuple[Tensor, Tensor]:
        """The summed loss of `captions` (pictures, captions each, length), and how many words it is the sum of."""
        words = captions.flatten(0, 1)
        memory = self.decoder.start(self.encoder(pictures), rows=len(words))
        scores, _ = self.decoder(words[:, :-1], memory)
        targets = words[:, 1:]
        loss = functional.cross_entropy(
            scores.flatten(0, 1),
            targets.flatten(),
            ignore_index=PAD,
            label_smoothing=self.label_smoothing,
            reduction="sum",
        )
        return loss, (targets != PAD).sum()

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
    model = Captioner(cfg, Vocabulary(state["_extra_state"]))
    model.load_state_dict(dict(state))
    return model.eval()
