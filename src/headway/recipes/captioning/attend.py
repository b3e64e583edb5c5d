"""Show, Attend and Tell (Xu et al., 2015): at each word, look at the picture anew, then say the next.

Additive attention, a gate over what is seen, a deep output, and the doubly stochastic term. One word waits for the one
before it; what can be done for all words at once, the picture's projections and the scores, is done once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headway.recipes.captioning.config import Config
from headway.recipes.captioning.decoders import Decoder, Lesson, WordEmbedding, remember_at_first, word_scores
from headway.recipes.captioning.late import Map, linear_map
from headway.recipes.captioning.words import PAD
from headway.recipes.dropout import Dropout


class Attending(NamedTuple):
    """Of a picture: what is looked for and what is found, by cell. Of a row: each layer's numbers."""

    keys: Tensor  # (pictures, 1, cells, attention)
    values: Tensor  # (pictures, cells, width)
    layers: tuple[tuple[Tensor, ...], ...]
    looks: Tensor | None = None

    def of(self, rows: Tensor) -> Attending:
        layers = tuple(tuple(part[rows] for part in layer) for layer in self.layers)
        return Attending(self.keys, self.values, layers, None if self.looks is None else self.looks[rows])


class Maps(NamedTuple):
    """What every word goes through: where to look and how much to let in, then layer by layer."""

    ask: Map  # from the top layer: what is looked for, and the gate
    layers: tuple[tuple[Map, ...], ...]  # an LSTM: one, of what comes from below and what it knows; a GRU: one of each


class AttentionDecoder(Decoder):
    """`layers` LSTM or GRU cells of `hidden` numbers; the picture's features are brought to that width first."""

    def __init__(self, cfg: Config, words: int, cells: int, channels: int) -> None:
        super().__init__()
        self.word_dropout, self.doubly, self.kind = cfg.word_dropout, cfg.doubly_stochastic, cfg.cell
        width = cfg.hidden
        self.embedding = WordEmbedding(words, cfg.embedding, small=cfg.tied)
        self.look, self.look_norm = nn.Linear(channels, width), nn.LayerNorm(width)
        self.key, self.query = nn.Linear(width, cfg.attention), nn.Linear(width, cfg.attention)
        self.energy = nn.Linear(cfg.attention, 1, bias=False)
        self.gate = nn.Linear(width, width)
        states = 2 if cfg.cell == "lstm" else 1
        self.first = nn.Linear(
            width, states * cfg.layers * width
        )  # the states to begin with, from the mean of the grid
        make = nn.LSTMCell if cfg.cell == "lstm" else nn.GRUCell
        self.cells = nn.ModuleList(
            make(cfg.embedding + width if layer == 0 else width, width) for layer in range(cfg.layers)
        )
        for cell in self.cells:
            if isinstance(cell, nn.LSTMCell):
                remember_at_first(cell)
        self.from_hidden, self.from_seen = nn.Linear(width, cfg.embedding), nn.Linear(width, cfg.embedding, bias=False)
        self.score = word_scores(cfg, cfg.embedding, self.embedding)
        self.dropout = Dropout(cfg.dropout)

    def start(self, grid: Tensor, rows: int) -> Attending:
        values = self.dropout(self.look_norm(self.look(grid)))
        states = torch.tanh(self.first(values.mean(dim=1))).repeat_interleave(rows // len(grid), dim=0)
        parts = states.chunk(len(self.cells) * (2 if self.kind == "lstm" else 1), dim=1)
        by_layer = [parts[n :: len(self.cells)] for n in range(len(self.cells))]
        return Attending(self.key(values)[:, None], values, tuple(by_layer))

    def forward(self, words: Tensor, state: Attending) -> tuple[Tensor, Attending]:
        scores, maps = [], self._maps(None)
        for word in words.unbind(dim=1):
            embedded = self.embedding(word)
            hidden, seen, state = self._step(embedded, state, maps)
            scores.append(self._scores(hidden, seen, embedded))
        return torch.stack(scores, dim=1), state

    def learn(self, grid: Tensor, captions: Tensor) -> Lesson:
        """Each picture's captions are sorted by length, so that at a late word only the long ones are computed."""
        lengths = (captions[:, :, 1:] != PAD).sum(dim=2)
        order = lengths.argsort(dim=1, descending=True, stable=True)
        captions = captions.gather(1, order[:, :, None].expand_as(captions))
        longest = lengths.gather(1, order).amax(dim=0).tolist()  # of the pictures' longest captions, second longest, …
        given, targets = self._forgetful(captions[:, :, :-1]), captions[:, :, 1:]
        pictures, each, _ = targets.shape
        state = self.start(grid, rows=pictures * each)
        whose = order + torch.arange(pictures, device=grid.device)[:, None] * each
        kept: list[tuple[Tensor, ...]] = []
        covered = grid.new_zeros(pictures, each, grid.shape[1])
        guess: Tensor | None = None
        still = [sum(length > step for length in longest) for step in range(int(longest[0]))]
        maps = self._maps([pictures * going for going in still])
        for step, going in enumerate(still):
            state = self._first(state, pictures, going)
            embedded = self.embedding(self._word(given[:, :going, step].flatten(), guess, going, pictures))
            hidden, seen, state = self._step(embedded, state, maps)
            now = targets[:, :going, step].flatten()
            said = now != PAD
            kept.append((hidden[said], seen[said], embedded[said], now[said], whose[:, :going].flatten()[said]))
            assert state.looks is not None
            looks = (state.looks * said[:, None]).view(pictures, going, -1)
            covered = covered + torch.nn.functional.pad(looks, [0, 0, 0, each - going])
            if self.training and self.own_words:
                guess = self._scores(hidden, seen, embedded).detach().argmax(dim=1).view(pictures, going)
        hidden, seen, embedded, targets, whose = (torch.cat(parts) for parts in zip(*kept, strict=True))
        extra = self.doubly * ((1 - covered) ** 2).sum() if self.doubly else None
        return Lesson(self._scores(hidden, seen, embedded), targets, whose, extra)

    def _word(self, said: Tensor, guess: Tensor | None, going: int, pictures: int) -> Tensor:
        """What was said, or, as often as the schedule has it, what it guessed itself."""
        if guess is None:
            return said
        own = torch.rand(said.shape, device=said.device) < self.own_words
        return torch.where(own & (said != PAD), guess[:, :going].reshape(-1), said)

    def _first(self, state: Attending, pictures: int, going: int) -> Attending:
        """The state of the first `going` captions of each picture."""
        rows = len(state.layers[0][0])
        if rows == pictures * going:
            return state
        layers = tuple(
            tuple(part.view(pictures, rows // pictures, -1)[:, :going].flatten(0, 1) for part in layer)
            for layer in state.layers
        )
        return state._replace(layers=layers)

    def _maps(self, rows: Sequence[int] | None) -> Maps:
        """`rows` at each word, where it is learnt from; None where it is not."""
        ask = torch.cat([self.query.weight, self.gate.weight]), torch.cat([self.query.bias, self.gate.bias])
        layers: list[tuple[Map, ...]] = []
        for cell in self.cells:
            assert isinstance(cell, nn.LSTMCell | nn.GRUCell)
            below, own = (cell.weight_ih, cell.bias_ih), (cell.weight_hh, cell.bias_hh)
            if self.kind == "lstm":
                layers.append((linear_map(torch.cat([below[0], own[0]], dim=1), below[1] + own[1], rows),))
            else:
                layers.append((linear_map(*below, rows), linear_map(*own, rows)))
        return Maps(linear_map(*ask, rows), tuple(layers))

    def _step(self, embedded: Tensor, state: Attending, maps: Maps) -> tuple[Tensor, Tensor, Attending]:
        pictures, cells, _ = state.values.shape
        top = state.layers[-1][0]
        asked, gate = maps.ask(top).tensor_split([self.query.out_features], dim=1)
        energy = self.energy(torch.tanh(state.keys + asked.reshape(pictures, len(top) // pictures, 1, -1))).squeeze(3)
        looks = energy.softmax(dim=2)
        seen = (looks @ state.values).flatten(0, 1) * torch.sigmoid(gate)
        below, layers = torch.cat([embedded, seen], dim=1), []
        advance = _lstm if self.kind == "lstm" else _gru
        for own, before in zip(maps.layers, state.layers, strict=True):
            after = advance(own, below, before)
            layers.append(after)
            below = self.dropout(after[0])
        return layers[-1][0], seen, Attending(state.keys, state.values, tuple(layers), looks.view(len(top), cells))

    def _scores(self, hidden: Tensor, seen: Tensor, embedded: Tensor) -> Tensor:
        told: Tensor = self.score(self.dropout(embedded + self.from_hidden(hidden) + self.from_seen(seen)))
        return told


def _lstm(maps: tuple[Map, ...], below: Tensor, before: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    hidden, cell = before
    let_in, keep, new, say = maps[0](torch.cat([below, hidden], dim=1)).chunk(4, dim=1)
    cell = torch.sigmoid(keep) * cell + torch.sigmoid(let_in) * torch.tanh(new)
    return torch.sigmoid(say) * torch.tanh(cell), cell


def _gru(maps: tuple[Map, ...], below: Tensor, before: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (hidden,) = before
    reset, keep, new = maps[0](below).chunk(3, dim=1)
    own_reset, own_keep, own_new = maps[1](hidden).chunk(3, dim=1)
    new = torch.tanh(new + torch.sigmoid(reset + own_reset) * own_new)
    return (new + torch.sigmoid(keep + own_keep) * (hidden - new),)
