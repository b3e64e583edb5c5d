"""A small Transformer decoder. The captions of a picture are learnt as one row, so that hardly anything is padding."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from headway.recipes.captioning.config import Config
from headway.recipes.captioning.decoders import Decoder, Lesson, WordEmbedding, word_scores
from headway.recipes.captioning.words import PAD
from headway.recipes.dropout import Dropout

Pair = tuple[Tensor, Tensor]  # keys and values: (…, heads, places, size)


class Cache(NamedTuple):
    """Keys and values so far: `seen` of each picture, `said` of each row, layer by layer."""

    seen: tuple[Pair, ...]
    said: tuple[Pair, ...]
    looks: Tensor | None = None

    def of(self, rows: Tensor) -> Cache:
        said = tuple((keys[rows], values[rows]) for keys, values in self.said)
        return Cache(self.seen, said, None if self.looks is None else self.looks[rows])


class Row(NamedTuple):
    """The words of a batch without padding, and where each lies in one row a picture."""

    words: Tensor  # (words,)
    targets: Tensor
    captions: Tensor  # whose each word is
    position: Tensor  # of each word in its caption
    at: Tensor  # of each word in the rows, one behind the other
    mask: Tensor  # (pictures, length, length): which places of its row each may attend to

    def spread(self, x: Tensor) -> Tensor:
        """(words, width) to (pictures, length, width)."""
        pictures, length, _ = self.mask.shape
        return x.new_zeros(pictures * length, x.shape[1]).index_copy(0, self.at, x).view(pictures, length, -1)

    def gathered(self, x: Tensor) -> Tensor:
        """The way back."""
        return x.flatten(0, 1)[self.at]


def laid_out(words: Tensor, targets: Tensor) -> Row:
    """Padding between the captions is squeezed out; what is left of it stands at the end of the rows."""
    pictures, each, length = words.shape
    said = (targets != PAD).flatten(1)
    order = (~said).to(torch.int8).argsort(dim=1, stable=True)[:, : int(said.sum(dim=1).max())]
    caption = torch.arange(each, device=words.device).repeat_interleave(length).expand(pictures, -1).gather(1, order)
    position = torch.arange(length, device=words.device).repeat(each).expand(pictures, -1).gather(1, order)
    same = caption[:, :, None] == caption[:, None, :]
    mask = same & (position[:, :, None] >= position[:, None, :])
    at = said.gather(1, order).flatten().nonzero()[:, 0]
    given, wanted = (part.flatten(1).gather(1, order).flatten()[at] for part in (words, targets))
    whose = caption + torch.arange(pictures, device=words.device)[:, None] * each
    return Row(given, wanted, whose.flatten()[at], position.flatten()[at], at, mask)


class Layer(nn.Module):
    """Attention over the words before, attention over the picture, and a feed-forward layer; normalised before each."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        width, self.heads = cfg.embedding, cfg.heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.words, self.words_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ask, self.picture, self.picture_out = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )
        self.wide, self.narrow = nn.Linear(width, cfg.hidden), nn.Linear(cfg.hidden, width)
        self.dropout = Dropout(cfg.dropout)

    def see(self, grid: Tensor) -> Pair:
        keys, values = self.picture(grid).chunk(2, dim=2)
        return self._by_head(keys), self._by_head(values)

    def forward(self, x: Tensor, seen: Pair, row: Row) -> Tensor:
        """All words of all pictures at once: x (words, width). Padding is there in the two attentions alone."""
        asked, keys, values = (self._by_head(part) for part in row.spread(self.words(self.norms[0](x))).chunk(3, dim=2))
        found = functional.scaled_dot_product_attention(asked, keys, values, attn_mask=row.mask[:, None])
        x = x + self.dropout(self.words_out(row.gathered(self._joined(found))))
        asked = self._by_head(row.spread(self.ask(self.norms[1](x))))
        found = functional.scaled_dot_product_attention(asked, *seen)
        x = x + self.dropout(self.picture_out(row.gathered(self._joined(found))))
        return self._think(x)

    def next(self, x: Tensor, seen: Pair, said: Pair | None) -> tuple[Tensor, Pair, Tensor]:
        """One more word a row: x (rows, 1, width). Also what is said by now, and where it looked (rows, cells)."""
        asked, keys, values = (self._by_head(part) for part in self.words(self.norms[0](x)).chunk(3, dim=2))
        if said is not None:
            keys, values = torch.cat([said[0], keys], dim=2), torch.cat([said[1], values], dim=2)
        found = functional.scaled_dot_product_attention(asked, keys, values)
        x = x + self.words_out(self._joined(found))
        pictures = len(seen[0])
        asked = self._by_head(self.ask(self.norms[1](x)).view(pictures, len(x) // pictures, -1))
        weights = (asked @ seen[0].transpose(2, 3) / asked.shape[3] ** 0.5).softmax(dim=3)
        found = self._joined(weights @ seen[1]).view(len(x), 1, -1)
        x = x + self.picture_out(found)
        return self._think(x), (keys, values), weights.mean(dim=1).flatten(0, 1)

    def _think(self, x: Tensor) -> Tensor:
        thought: Tensor = x + self.dropout(self.narrow(self.dropout(functional.gelu(self.wide(self.norms[2](x))))))
        return thought

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    @staticmethod
    def _joined(x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)


class TransformerDecoder(Decoder):
    """`layers` layers of width `embedding`, feed-forward `hidden`."""

    def __init__(self, cfg: Config, words: int, cells: int, channels: int) -> None:
        super().__init__()
        self.word_dropout = cfg.word_dropout
        width = cfg.embedding
        self.embedding = WordEmbedding(words, width, small=True)
        self.position = nn.Parameter(torch.randn(cfg.max_length + 1, width) * 0.02)
        self.look, self.place = nn.Linear(channels, width), nn.Parameter(torch.randn(cells, width) * 0.02)
        self.look_norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.layers))
        self.norm = nn.LayerNorm(width)
        self.score = word_scores(cfg, width, self.embedding)
        self.dropout = Dropout(cfg.dropout)

    def start(self, grid: Tensor, rows: int) -> Cache:
        seen = self._see(grid)
        return Cache(tuple(layer.see(seen) for layer in self._stack()), ())

    def forward(self, words: Tensor, state: Cache) -> tuple[Tensor, Cache]:
        scores = []
        for word in words.unbind(dim=1):
            told, state = self._next(word[:, None], state)
            scores.append(told)
        return torch.cat(scores, dim=1), state

    def learn(self, grid: Tensor, captions: Tensor) -> Lesson:
        """The captions of each picture lie one behind the other; a word sees those of its own caption before it."""
        row = laid_out(self._forgetful(captions[:, :, :-1]), captions[:, :, 1:])
        x, seen = self.dropout(self.embedding(row.words) + self.position[row.position]), self._see(grid)
        for layer in self._stack():
            x = layer(x, layer.see(seen), row)
        return Lesson(self.score(self.dropout(self.norm(x))), row.targets, row.captions)

    def _see(self, grid: Tensor) -> Tensor:
        seen: Tensor = self.dropout(self.look_norm(self.look(grid) + self.place))
        return seen

    def _next(self, word: Tensor, state: Cache) -> tuple[Tensor, Cache]:
        length = state.said[0][0].shape[2] if state.said else 0
        x, said = self.embedding(word) + self.position[length], []
        looks: Tensor | None = None
        for number, layer in enumerate(self._stack()):
            x, now, looks = layer.next(x, state.seen[number], state.said[number] if state.said else None)
            said.append(now)
        return self.score(self.norm(x)), Cache(state.seen, tuple(said), looks)

    def _stack(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]
