"""Caption decoders: LSTM, glimpse, attention (Show, Attend and Tell) and Transformer.

A decoder predicts the next word for rows of words: row r of `rows` belongs to picture r // (rows // n), so that the
captions of one picture, in training as in a beam search, share the computation on its grid.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from headway.recipes.captioning.config import Config
from headway.recipes.captioning.vocabulary import PAD, UNKNOWN
from headway.recipes.common import Dropout


class State(Protocol):
    """Decoder state carried from word to word."""

    @property
    def looks(self) -> Tensor | None:
        """Attention weights of the last word (rows, cells), each row summing to 1; None without attention."""

    def of(self, rows: Tensor) -> Any:
        """Select rows of the state, for a beam search that drops and duplicates hypotheses."""


class DecoderLossInputs(NamedTuple):
    """Inputs of a batch's loss: scores of every target word, in any order, without padding."""

    scores: Tensor  # (target words, vocabulary)
    targets: Tensor  # (target words,)
    captions: Tensor  # (target words,): index of each word's caption, over all pictures
    extra: Tensor | None = None  # a regularization term, summed, to add to the loss


class Decoder(nn.Module, ABC):
    """Base class of all decoders."""

    word_dropout: float
    own_words: float = 0.0  # scheduled sampling: probability of feeding the model's own prediction in training

    @abstractmethod
    def start(self, grid: Tensor, rows: int) -> Any:
        """Return the state before the first word of `rows` captions."""

    @abstractmethod
    def forward(self, words: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the scores of the word after each of `words` (rows, length), and the state after the last."""

    def learn(self, grid: Tensor, captions: Tensor) -> DecoderLossInputs:
        """Return the loss inputs for captions (pictures, captions each, length), padded at the end."""
        words = captions.flatten(0, 1)
        scores, _ = self(self._drop_words(words[:, :-1]), self.start(grid, rows=len(words)))
        is_word = words[:, 1:] != PAD
        return DecoderLossInputs(scores[is_word], words[:, 1:][is_word], is_word.nonzero()[:, 0])

    def _drop_words(self, words: Tensor) -> Tensor:
        """Apply word dropout in training, so that the previous words alone do not suffice to predict the next."""
        if not (self.training and self.word_dropout):
            return words
        hide = (torch.rand(words.shape, device=words.device) < self.word_dropout) & (words > UNKNOWN)
        return words.masked_fill(hide, UNKNOWN)


class DecoderState(NamedTuple):
    """LSTM state: `view` per picture, `hidden` and `cell` per row."""

    view: tuple[Tensor, ...]
    hidden: Tensor
    cell: Tensor
    looks: Tensor | None = None

    def of(self, rows: Tensor) -> DecoderState:
        return DecoderState(
            self.view, self.hidden[rows], self.cell[rows], None if self.looks is None else self.looks[rows]
        )


class LstmBase(Decoder):
    """Base of the decoders with one LSTM over the words."""

    def __init__(self, cfg: Config, words: int, seen: int) -> None:
        super().__init__()
        self.word_dropout = cfg.word_dropout
        self.embedding = WordEmbedding(words, cfg.embedding_size, small=cfg.tied)
        self.lstm = nn.LSTM(cfg.embedding_size + seen, cfg.hidden_size, batch_first=True)
        init_forget_bias(self.lstm)
        self.dropout = Dropout(cfg.dropout)

    def start(self, grid: Tensor, rows: int) -> DecoderState:
        nothing = grid.new_zeros(rows, self.lstm.hidden_size)
        return DecoderState(self.see(grid), nothing, nothing)

    @abstractmethod
    def see(self, grid: Tensor) -> tuple[Tensor, ...]:
        """Compute once, per picture, what every word needs."""

    def _read(self, given: Tensor, memory: DecoderState) -> tuple[Tensor, DecoderState]:
        state = (memory.hidden[None].contiguous(), memory.cell[None].contiguous())
        output, (hidden, cell) = self.lstm(given, state)
        return output, DecoderState(memory.view, hidden[0], cell[0])


class LstmDecoder(LstmBase):
    """LSTM decoder with the whole picture as one vector, concatenated to the word at every step."""

    def __init__(self, cfg: Config, words: int, cells: int, channels: int) -> None:
        super().__init__(cfg, words, seen=cfg.embedding_size)
        self.pooled = cfg.encoder != "cnn"  # a pretrained grid is averaged, that of the small CNN flattened
        self.look = nn.Linear(channels if self.pooled else cells * channels, cfg.embedding_size)
        self.score = word_scores(cfg, cfg.hidden_size, self.embedding)

    def see(self, grid: Tensor) -> tuple[Tensor, ...]:
        flat = grid.mean(dim=1) if self.pooled else grid.flatten(1)
        return (torch.relu(self.look(self.dropout(flat))),)

    def forward(self, words: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        output, after = self._read(self._given(words, state.view[0]), state)
        return self.score(self.dropout(output)), after

    def learn(self, grid: Tensor, captions: Tensor) -> DecoderLossInputs:
        """Pack the rows, so that captions shorter than the longest cost nothing extra."""
        words = captions.flatten(0, 1)
        lengths = (words[:, 1:] != PAD).sum(dim=1).cpu()
        given = self._given(self._drop_words(words[:, :-1]), self.see(grid)[0])
        output, _ = self.lstm(pack_padded_sequence(given, lengths, batch_first=True, enforce_sorted=False))
        whose = torch.arange(len(words), device=words.device)[:, None].expand_as(words[:, 1:])
        wanted = torch.stack([words[:, 1:], whose], dim=2)
        packed = pack_padded_sequence(wanted, lengths, batch_first=True, enforce_sorted=False).data
        return DecoderLossInputs(self.score(self.dropout(output.data)), packed[:, 0], packed[:, 1])

    def _given(self, words: Tensor, picture: Tensor) -> Tensor:
        rows = picture.repeat_interleave(len(words) // len(picture), dim=0)[:, None].expand(-1, words.shape[1], -1)
        return torch.cat([self.dropout(self.embedding(words)), rows], dim=2)


class GlimpseDecoder(LstmBase):
    """LSTM over the words alone, with attention on the picture that adds to the scores.

    Language and vision scores are only summed, and language passes through a low-rank layer (`syntax`): enough to
    predict that a shape comes next, too little to memorize which colour goes with which shape. Two extra attention
    slots stand for the whole picture and for nothing. As the LSTM does not depend on what is seen, all words of a batch
    are computed at once. Meant for scenes with attribute combinations that training never showed.
    """

    SHARPNESS: Final = 4.0  # initial attention scale: attention that starts uniform over all cells learns very slowly

    def __init__(self, cfg: Config, words: int, cells: int, channels: int) -> None:
        super().__init__(cfg, words, seen=0)
        self.heads, self.size = cfg.heads, max(8, cfg.hidden_size // cfg.heads // 8 * 8)
        width = self.heads * self.size
        self.place = nn.Parameter(torch.randn(cells, channels) * 0.1)
        self.whole = nn.Linear(channels, channels)
        self.nowhere = nn.Parameter(torch.zeros(channels))
        self.key, self.value = nn.Linear(channels, width), nn.Linear(channels, width)
        self.query = nn.Linear(cfg.hidden_size, width)
        self.language = _narrow(cfg.hidden_size, cfg.syntax, words)
        self.sight = nn.Linear(width, words, bias=False)

    def see(self, grid: Tensor) -> tuple[Tensor, ...]:
        whole = self.whole(grid.amax(dim=1, keepdim=True))
        nowhere = self.nowhere.expand(len(grid), 1, -1)
        places = torch.cat([grid + self.place, whole, nowhere], dim=1)
        return self._by_head(self.key(places)), self._by_head(self.value(places))

    def forward(self, words: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        output, after = self._read(self.embedding(words), state)
        keys, values = state.view
        rows, length, _ = output.shape
        asked = self._by_head(self.query(output).view(len(keys), rows // len(keys) * length, -1)) * self.SHARPNESS
        if self.training:
            found = functional.scaled_dot_product_attention(asked, keys, values)
        else:
            weights = (asked @ keys.transpose(2, 3) / self.size**0.5).softmax(dim=3)
            found = weights @ values
            cells = weights.mean(dim=1).view(rows, length, -1)[:, -1, : len(self.place)]
            after = after._replace(looks=cells / cells.sum(dim=1, keepdim=True).clamp(min=1e-6))
        seen = found.transpose(1, 2).reshape(rows, length, -1)
        return self.sight(self.dropout(seen)) + self.language(self.dropout(output)), after

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, self.size).transpose(1, 2)


def init_forget_bias(lstm: nn.LSTM | nn.LSTMCell) -> None:
    """Initialize the forget-gate bias to 1: torch's default forgets half of the cell state at every word."""
    with torch.no_grad():
        for name, bias in lstm.named_parameters():
            if name.startswith("bias_ih"):
                bias[lstm.hidden_size : 2 * lstm.hidden_size] = 1.0


class WordEmbedding(nn.Embedding):
    """Word embedding with unit-variance output.

    `small`: store small weights, suitable for tied output scores, and scale them up in `forward`. With tied weights and
    large embeddings, an untrained model would be far too sure that a word follows itself.
    """

    def __init__(self, words: int, width: int, *, small: bool) -> None:
        super().__init__(words, width, padding_idx=PAD)
        self._scale = math.sqrt(width) if small else 1.0
        if small:
            nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * self._scale


class TiedScores(nn.Module):
    """Output scores from the word embeddings (weight tying).

    The embedding belongs to another module and is not saved twice.
    """

    def __init__(self, given: int, embedding: nn.Embedding) -> None:
        super().__init__()
        same = given == embedding.embedding_dim
        self.fit = nn.Identity() if same else nn.Linear(given, embedding.embedding_dim)
        self.bias = nn.Parameter(torch.zeros(embedding.num_embeddings))
        self._embedding = [embedding]

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.fit(x), self._embedding[0].weight, self.bias)


def word_scores(cfg: Config, given: int, embedding: nn.Embedding) -> nn.Module:
    """Return the output layer: linear, or tied to the embedding if the config says so."""
    return TiedScores(given, embedding) if cfg.tied else nn.Linear(given, embedding.num_embeddings)


def _narrow(given: int, between: int, out: int) -> nn.Module:
    """Return a linear map of rank `between`, or of full rank if that is 0."""
    if not between:
        return nn.Linear(given, out)
    return nn.Sequential(nn.Linear(given, between, bias=False), nn.Linear(between, out))


# Show, Attend and Tell


Map = Callable[[Tensor], Tensor]


def linear_map(weight: Tensor, bias: Tensor) -> Map:
    """Return x ↦ x weightᵀ + bias, for weights that are joined from several layers."""
    return partial(functional.linear, weight=weight, bias=bias)


class AttentionState(NamedTuple):
    """Attention keys and values per picture, and the state of each layer per row."""

    keys: Tensor  # (pictures, 1, cells, attention)
    values: Tensor  # (pictures, cells, width)
    layers: tuple[tuple[Tensor, ...], ...]
    looks: Tensor | None = None

    def of(self, rows: Tensor) -> AttentionState:
        layers = tuple(tuple(part[rows] for part in layer) for layer in self.layers)
        return AttentionState(self.keys, self.values, layers, None if self.looks is None else self.looks[rows])


class DecoderWeights(NamedTuple):
    """The linear maps of a decoding step: attention query and gate, then each layer."""

    ask: Map  # from the top layer: attention query and gate
    layers: tuple[tuple[Map, ...], ...]  # LSTM: one map of (input, hidden); GRU: one map of each


class AttentionDecoder(Decoder):
    """Show, Attend and Tell (Xu et al., 2015) with `layers` LSTM or GRU cells of `hidden_size`.

    Additive attention, a gate over the context, a deep output layer, and doubly stochastic regularization. Picture
    features are projected to `hidden_size`. Words are sequential; the projections of the picture and the scores are
    computed once for all words.
    """

    def __init__(self, cfg: Config, words: int, cells: int, channels: int) -> None:
        super().__init__()
        self.word_dropout, self.doubly, self.kind = cfg.word_dropout, cfg.doubly_stochastic, cfg.cell
        width = cfg.hidden_size
        self.embedding = WordEmbedding(words, cfg.embedding_size, small=cfg.tied)
        self.look, self.look_norm = nn.Linear(channels, width), nn.LayerNorm(width)
        self.key, self.query = nn.Linear(width, cfg.attention_size), nn.Linear(width, cfg.attention_size)
        self.energy = nn.Linear(cfg.attention_size, 1, bias=False)
        self.gate = nn.Linear(width, width)
        states = 2 if cfg.cell == "lstm" else 1
        self.first = nn.Linear(width, states * cfg.layers * width)  # initial states from the mean of the grid
        make = nn.LSTMCell if cfg.cell == "lstm" else nn.GRUCell
        self.cells = nn.ModuleList(
            make(cfg.embedding_size + width if layer == 0 else width, width) for layer in range(cfg.layers)
        )
        for cell in self.cells:
            if isinstance(cell, nn.LSTMCell):
                init_forget_bias(cell)
        self.from_hidden = nn.Linear(width, cfg.embedding_size)
        self.from_seen = nn.Linear(width, cfg.embedding_size, bias=False)
        self.score = word_scores(cfg, cfg.embedding_size, self.embedding)
        self.dropout = Dropout(cfg.dropout)

    def start(self, grid: Tensor, rows: int) -> AttentionState:
        values = self.dropout(self.look_norm(self.look(grid)))
        states = torch.tanh(self.first(values.mean(dim=1))).repeat_interleave(rows // len(grid), dim=0)
        parts = states.chunk(len(self.cells) * (2 if self.kind == "lstm" else 1), dim=1)
        by_layer = [parts[n :: len(self.cells)] for n in range(len(self.cells))]
        return AttentionState(self.key(values)[:, None], values, tuple(by_layer))

    def forward(self, words: Tensor, state: AttentionState) -> tuple[Tensor, AttentionState]:
        scores, maps = [], self._maps()
        for word in words.unbind(dim=1):
            embedded = self.embedding(word)
            hidden, seen, state = self._step(embedded, state, maps)
            scores.append(self._scores(hidden, seen, embedded))
        return torch.stack(scores, dim=1), state

    def learn(self, grid: Tensor, captions: Tensor) -> DecoderLossInputs:
        """Compute the loss inputs.

        Each picture's captions are sorted by length, so that late steps process only the long ones.
        """
        lengths = (captions[:, :, 1:] != PAD).sum(dim=2)
        order = lengths.argsort(dim=1, descending=True, stable=True)
        captions = captions.gather(1, order[:, :, None].expand_as(captions))
        longest = lengths.gather(1, order).amax(dim=0).tolist()  # the longest, second longest, … over all pictures
        given, targets = self._drop_words(captions[:, :, :-1]), captions[:, :, 1:]
        pictures, each, _ = targets.shape
        state = self.start(grid, rows=pictures * each)
        whose = order + torch.arange(pictures, device=grid.device)[:, None] * each
        kept: list[tuple[Tensor, ...]] = []
        covered = grid.new_zeros(pictures, each, grid.shape[1])
        guess: Tensor | None = None
        still = [sum(length > step for length in longest) for step in range(int(longest[0]))]
        maps = self._maps()
        for step, going in enumerate(still):
            state = self._first(state, pictures, going)
            embedded = self.embedding(self._word(given[:, :going, step].flatten(), guess, going, pictures))
            hidden, seen, state = self._step(embedded, state, maps)
            now = targets[:, :going, step].flatten()
            is_word = now != PAD
            caption = whose[:, :going].flatten()[is_word]
            kept.append((hidden[is_word], seen[is_word], embedded[is_word], now[is_word], caption))
            assert state.looks is not None
            looks = (state.looks * is_word[:, None]).view(pictures, going, -1)
            covered = covered + torch.nn.functional.pad(looks, [0, 0, 0, each - going])
            if self.training and self.own_words:
                guess = self._scores(hidden, seen, embedded).detach().argmax(dim=1).view(pictures, going)
        hidden, seen, embedded, targets, whose = (torch.cat(parts) for parts in zip(*kept, strict=True))
        extra = self.doubly * ((1 - covered) ** 2).sum() if self.doubly else None
        return DecoderLossInputs(self._scores(hidden, seen, embedded), targets, whose, extra)

    def _word(self, word: Tensor, guess: Tensor | None, going: int, pictures: int) -> Tensor:
        """Return the reference word or, with the scheduled-sampling probability, the model's own prediction."""
        if guess is None:
            return word
        own = torch.rand(word.shape, device=word.device) < self.own_words
        return torch.where(own & (word != PAD), guess[:, :going].reshape(-1), word)

    def _first(self, state: AttentionState, pictures: int, going: int) -> AttentionState:
        """Return the state of the first `going` captions of each picture."""
        rows = len(state.layers[0][0])
        if rows == pictures * going:
            return state
        layers = tuple(
            tuple(part.view(pictures, rows // pictures, -1)[:, :going].flatten(0, 1) for part in layer)
            for layer in state.layers
        )
        return state._replace(layers=layers)

    def _maps(self) -> DecoderWeights:
        """Build the linear maps, once for all words."""
        ask = torch.cat([self.query.weight, self.gate.weight]), torch.cat([self.query.bias, self.gate.bias])
        layers: list[tuple[Map, ...]] = []
        for cell in self.cells:
            assert isinstance(cell, nn.LSTMCell | nn.GRUCell)
            below, own = (cell.weight_ih, cell.bias_ih), (cell.weight_hh, cell.bias_hh)
            if self.kind == "lstm":
                layers.append((linear_map(torch.cat([below[0], own[0]], dim=1), below[1] + own[1]),))
            else:
                layers.append((linear_map(*below), linear_map(*own)))
        return DecoderWeights(linear_map(*ask), tuple(layers))

    def _step(
        self, embedded: Tensor, state: AttentionState, maps: DecoderWeights
    ) -> tuple[Tensor, Tensor, AttentionState]:
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
        return layers[-1][0], seen, AttentionState(state.keys, state.values, tuple(layers), looks.view(len(top), cells))

    def _scores(self, hidden: Tensor, seen: Tensor, embedded: Tensor) -> Tensor:
        scores: Tensor = self.score(self.dropout(embedded + self.from_hidden(hidden) + self.from_seen(seen)))
        return scores


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


# A small Transformer decoder. In training, the captions of a picture form one row, so that little is padding.


Pair = tuple[Tensor, Tensor]  # keys and values: (…, heads, positions, size)


class Cache(NamedTuple):
    """Key/value cache per layer: `seen` of each picture, `written` of each row."""

    seen: tuple[Pair, ...]
    written: tuple[Pair, ...]
    looks: Tensor | None = None

    def of(self, rows: Tensor) -> Cache:
        written = tuple((keys[rows], values[rows]) for keys, values in self.written)
        return Cache(self.seen, written, None if self.looks is None else self.looks[rows])


class Row(NamedTuple):
    """The words of a batch without padding, and the position of each in one row per picture."""

    words: Tensor  # (words,)
    targets: Tensor
    captions: Tensor  # caption of each word
    position: Tensor  # position of each word in its caption
    at: Tensor  # index of each word in the flattened rows
    mask: Tensor  # (pictures, length, length): attention mask inside each row

    def spread(self, x: Tensor) -> Tensor:
        """Scatter (words, width) to (pictures, length, width)."""
        pictures, length, _ = self.mask.shape
        return x.new_zeros(pictures * length, x.shape[1]).index_copy(0, self.at, x).view(pictures, length, -1)

    def gathered(self, x: Tensor) -> Tensor:
        """Gather (pictures, length, width) back to (words, width)."""
        return x.flatten(0, 1)[self.at]


def pack_rows(words: Tensor, targets: Tensor) -> Row:
    """Pack each picture's captions into one row, with all padding at the end of the row."""
    pictures, each, length = words.shape
    is_word = (targets != PAD).flatten(1)
    order = (~is_word).to(torch.int8).argsort(dim=1, stable=True)[:, : int(is_word.sum(dim=1).max())]
    caption = torch.arange(each, device=words.device).repeat_interleave(length).expand(pictures, -1).gather(1, order)
    position = torch.arange(length, device=words.device).repeat(each).expand(pictures, -1).gather(1, order)
    same = caption[:, :, None] == caption[:, None, :]
    mask = same & (position[:, :, None] >= position[:, None, :])
    at = is_word.gather(1, order).flatten().nonzero()[:, 0]
    given, wanted = (part.flatten(1).gather(1, order).flatten()[at] for part in (words, targets))
    whose = caption + torch.arange(pictures, device=words.device)[:, None] * each
    return Row(given, wanted, whose.flatten()[at], position.flatten()[at], at, mask)


class Layer(nn.Module):
    """Pre-norm Transformer layer: causal self-attention, cross-attention to the picture, and feed-forward."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        width, self.heads = cfg.embedding_size, cfg.heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.words, self.words_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ask, self.picture, self.picture_out = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )
        self.wide, self.narrow = nn.Linear(width, cfg.hidden_size), nn.Linear(cfg.hidden_size, width)
        self.dropout = Dropout(cfg.dropout)

    def see(self, grid: Tensor) -> Pair:
        keys, values = self.picture(grid).chunk(2, dim=2)
        return self._by_head(keys), self._by_head(values)

    def forward(self, x: Tensor, seen: Pair, row: Row) -> Tensor:
        """Process all words of all pictures at once: x (words, width). Only the two attentions see padding."""
        asked, keys, values = (self._by_head(part) for part in row.spread(self.words(self.norms[0](x))).chunk(3, dim=2))
        found = functional.scaled_dot_product_attention(asked, keys, values, attn_mask=row.mask[:, None])
        x = x + self.dropout(self.words_out(row.gathered(self._joined(found))))
        asked = self._by_head(row.spread(self.ask(self.norms[1](x))))
        found = functional.scaled_dot_product_attention(asked, *seen)
        x = x + self.dropout(self.picture_out(row.gathered(self._joined(found))))
        return self._think(x)

    def next(self, x: Tensor, seen: Pair, written: Pair | None) -> tuple[Tensor, Pair, Tensor]:
        """Process one more word per row: x (rows, 1, width).

        Also returns the extended key/value cache and the attention weights (rows, cells).
        """
        asked, keys, values = (self._by_head(part) for part in self.words(self.norms[0](x)).chunk(3, dim=2))
        if written is not None:
            keys, values = torch.cat([written[0], keys], dim=2), torch.cat([written[1], values], dim=2)
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
    """Transformer of `layers` layers with width `embedding_size` and feed-forward width `hidden_size`."""

    def __init__(self, cfg: Config, words: int, cells: int, channels: int) -> None:
        super().__init__()
        self.word_dropout = cfg.word_dropout
        width = cfg.embedding_size
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
            next_scores, state = self._next(word[:, None], state)
            scores.append(next_scores)
        return torch.cat(scores, dim=1), state

    def learn(self, grid: Tensor, captions: Tensor) -> DecoderLossInputs:
        """Compute the loss inputs.

        Captions of a picture are concatenated; a word attends to the earlier ones of its own caption.
        """
        row = pack_rows(self._drop_words(captions[:, :, :-1]), captions[:, :, 1:])
        x, seen = self.dropout(self.embedding(row.words) + self.position[row.position]), self._see(grid)
        for layer in self._stack():
            x = layer(x, layer.see(seen), row)
        return DecoderLossInputs(self.score(self.dropout(self.norm(x))), row.targets, row.captions)

    def _see(self, grid: Tensor) -> Tensor:
        seen: Tensor = self.dropout(self.look_norm(self.look(grid) + self.place))
        return seen

    def _next(self, word: Tensor, state: Cache) -> tuple[Tensor, Cache]:
        length = state.written[0][0].shape[2] if state.written else 0
        x, written = self.embedding(word) + self.position[length], []
        looks: Tensor | None = None
        for number, layer in enumerate(self._stack()):
            x, now, looks = layer.next(x, state.seen[number], state.written[number] if state.written else None)
            written.append(now)
        return self.score(self.norm(x)), Cache(state.seen, tuple(written), looks)

    def _stack(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]
