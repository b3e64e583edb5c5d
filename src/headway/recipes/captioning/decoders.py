"""Decoders: from a grid of features to words, and those two that are one LSTM over the words.

A decoder predicts the next word for rows of words: row r of `rows` belongs to picture r // (rows // n), so that the
captions of one picture, in training as in a beam search, share what is computed of its grid.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from headway.recipes.captioning.config import Config
from headway.recipes.captioning.words import PAD, UNKNOWN
from headway.recipes.dropout import Dropout


class State(Protocol):
    """What a decoder carries from word to word."""

    @property
    def looks(self) -> Tensor | None:
        """Where it looked for the last word: (rows, cells), each row adding up to 1; None if it does not look."""

    def of(self, rows: Tensor) -> Any:
        """The state of other rows of the same pictures: what a beam search does when it drops and doubles captions."""


class Lesson(NamedTuple):
    """What there is to learn from a batch: scores of every word said, in any order, without padding."""

    scores: Tensor  # (words said, vocabulary)
    targets: Tensor  # (words said,)
    captions: Tensor  # (words said,): whose each is, the captions of all pictures counted through
    extra: Tensor | None = None  # a sum to be made small besides


class Decoder(nn.Module, ABC):
    """What all decoders promise."""

    word_dropout: float
    own_words: float = 0.0  # how often, while learning, it is given its own guess and not the word that was said

    @abstractmethod
    def start(self, grid: Tensor, rows: int) -> Any:
        """The state before the first word of `rows` captions."""

    @abstractmethod
    def forward(self, words: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Scores of the word after each of `words` (rows, length), and the state after the last."""

    def learn(self, grid: Tensor, captions: Tensor) -> Lesson:
        """From captions (pictures, captions each, length), padded at the end."""
        words = captions.flatten(0, 1)
        scores, _ = self(self._forgetful(words[:, :-1]), self.start(grid, rows=len(words)))
        said = words[:, 1:] != PAD
        return Lesson(scores[said], words[:, 1:][said], said.nonzero()[:, 0])

    def _forgetful(self, words: Tensor) -> Tensor:
        """While learning, hide some of the words: guessing the next one from them must not be enough."""
        if not (self.training and self.word_dropout):
            return words
        hide = (torch.rand(words.shape, device=words.device) < self.word_dropout) & (words > UNKNOWN)
        return words.masked_fill(hide, UNKNOWN)


class Memory(NamedTuple):
    """`view` is of a picture, `hidden` and `cell` are of a row."""

    view: tuple[Tensor, ...]
    hidden: Tensor
    cell: Tensor
    looks: Tensor | None = None

    def of(self, rows: Tensor) -> Memory:
        return Memory(self.view, self.hidden[rows], self.cell[rows], None if self.looks is None else self.looks[rows])


class OneLstm(Decoder):
    """What the two have in common: an LSTM over words."""

    def __init__(self, cfg: Config, words: int, seen: int) -> None:
        super().__init__()
        self.word_dropout = cfg.word_dropout
        self.embedding = WordEmbedding(words, cfg.embedding, small=cfg.tied)
        self.lstm = nn.LSTM(cfg.embedding + seen, cfg.hidden, batch_first=True)
        remember_at_first(self.lstm)
        self.dropout = Dropout(cfg.dropout)

    def start(self, grid: Tensor, rows: int) -> Memory:
        nothing = grid.new_zeros(rows, self.lstm.hidden_size)
        return Memory(self.see(grid), nothing, nothing)

    @abstractmethod
    def see(self, grid: Tensor) -> tuple[Tensor, ...]:
        """What of a picture is needed at every word, computed once."""

    def _read(self, given: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        state = (memory.hidden[None].contiguous(), memory.cell[None].contiguous())
        said, (hidden, cell) = self.lstm(given, state)
        return said, Memory(memory.view, hidden[0], cell[0])


class LstmDecoder(OneLstm):
    """The whole picture as one vector, beside the word, at every step."""

    def __init__(self, cfg: Config, words: int, cells: int, channels: int) -> None:
        super().__init__(cfg, words, seen=cfg.embedding)
        self.pooled = cfg.encoder != "cnn"  # a published grid is averaged; the small one is taken as it is
        self.look = nn.Linear(channels if self.pooled else cells * channels, cfg.embedding)
        self.score = word_scores(cfg, cfg.hidden, self.embedding)

    def see(self, grid: Tensor) -> tuple[Tensor, ...]:
        flat = grid.mean(dim=1) if self.pooled else grid.flatten(1)
        return (torch.relu(self.look(self.dropout(flat))),)

    def forward(self, words: Tensor, state: Memory) -> tuple[Tensor, Memory]:
        said, after = self._read(self._given(words, state.view[0]), state)
        return self.score(self.dropout(said)), after

    def learn(self, grid: Tensor, captions: Tensor) -> Lesson:
        """Rows are packed: what is shorter than the longest caption costs nothing."""
        words = captions.flatten(0, 1)
        lengths = (words[:, 1:] != PAD).sum(dim=1).cpu()
        given = self._given(self._forgetful(words[:, :-1]), self.see(grid)[0])
        said, _ = self.lstm(pack_padded_sequence(given, lengths, batch_first=True, enforce_sorted=False))
        whose = torch.arange(len(words), device=words.device)[:, None].expand_as(words[:, 1:])
        wanted = torch.stack([words[:, 1:], whose], dim=2)
        packed = pack_padded_sequence(wanted, lengths, batch_first=True, enforce_sorted=False).data
        return Lesson(self.score(self.dropout(said.data)), packed[:, 0], packed[:, 1])

    def _given(self, words: Tensor, picture: Tensor) -> Tensor:
        rows = picture.repeat_interleave(len(words) // len(picture), dim=0)[:, None].expand(-1, words.shape[1], -1)
        return torch.cat([self.dropout(self.embedding(words)), rows], dim=2)


class GlimpseDecoder(OneLstm):
    """The LSTM reads the words alone; at each it chooses where to look, and what is seen there adds to the scores.

    Language and sight meet in a sum and nowhere else, and language speaks through a few numbers (`syntax`): enough to
    say that a shape comes next, too few to learn by heart which colour goes with which. Two more places to look at
    stand for the whole picture and for nowhere. As the LSTM does not wait for what is seen, all words of a batch are
    computed at once. For scenes where combinations must be named that training never showed.
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

    def forward(self, words: Tensor, state: Memory) -> tuple[Tensor, Memory]:
        said, after = self._read(self.embedding(words), state)
        keys, values = state.view
        rows, length, _ = said.shape
        asked = self._by_head(self.query(said).view(len(keys), rows // len(keys) * length, -1)) * self.SHARPNESS
        if self.training:
            found = functional.scaled_dot_product_attention(asked, keys, values)
        else:
            weights = (asked @ keys.transpose(2, 3) / self.size**0.5).softmax(dim=3)
            found = weights @ values
            cells = weights.mean(dim=1).view(rows, length, -1)[:, -1, : len(self.place)]
            after = after._replace(looks=cells / cells.sum(dim=1, keepdim=True).clamp(min=1e-6))
        seen = found.transpose(1, 2).reshape(rows, length, -1)
        return self.sight(self.dropout(seen)) + self.language(self.dropout(said)), after

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, self.size).transpose(1, 2)


def remember_at_first(lstm: nn.LSTM | nn.LSTMCell) -> None:
    """It starts out remembering: torch's own start forgets half at every word."""
    with torch.no_grad():
        for name, bias in lstm.named_parameters():
            if name.startswith("bias_ih"):
                bias[lstm.hidden_size : 2 * lstm.hidden_size] = 1.0


class WordEmbedding(nn.Embedding):
    """Words as numbers of size one. `small`: kept as smaller ones, for scores that are made with them too.

    Where a word's own embedding is part of what is scored, large ones begin surer by far that it follows itself.
    """

    def __init__(self, words: int, width: int, *, small: bool) -> None:
        super().__init__(words, width, padding_idx=PAD)
        self._scale = math.sqrt(width) if small else 1.0
        if small:
            nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * self._scale


class TiedScores(nn.Module):
    """Scores of words by their own embeddings. These are another module's, and not twice in the state."""

    def __init__(self, given: int, embedding: nn.Embedding) -> None:
        super().__init__()
        same = given == embedding.embedding_dim
        self.fit = nn.Identity() if same else nn.Linear(given, embedding.embedding_dim)
        self.bias = nn.Parameter(torch.zeros(embedding.num_embeddings))
        self._embedding = [embedding]

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.fit(x), self._embedding[0].weight, self.bias)


def word_scores(cfg: Config, given: int, embedding: nn.Embedding) -> nn.Module:
    """A linear map to the words; through their embeddings where the two are tied."""
    return TiedScores(given, embedding) if cfg.tied else nn.Linear(given, embedding.num_embeddings)


def _narrow(given: int, between: int, out: int) -> nn.Module:
    """A linear map of rank `between`; of full rank where that is 0."""
    if not between:
        return nn.Linear(given, out)
    return nn.Sequential(nn.Linear(given, between, bias=False), nn.Linear(between, out))
