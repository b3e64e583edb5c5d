"""The translator: an encoder-decoder Transformer.

Training computes all tokens of a batch at once. Decoding goes token by token with a key/value cache (`DecoderCache`),
so that each token costs the same. Rows of a search share the sentence they translate: row r belongs to sentence r //
(rows // sentences), whose keys and values are stored once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from headway.core.errors import BadInput
from headway.data.text import PAD, BpeTokenizer, load_tokenizer
from headway.recipes.translation.config import Config

# Label-smoothed cross entropy


_CHUNK = 256  # tokens: 8 MB of scores with 8,000 subwords


def smoothed_loss(hidden: Tensor, table: Tensor, wanted: Tensor, smoothing: float) -> Tensor:
    """Return Σ −log p as torch defines it: `smoothing` is spread evenly over all rows of `table`.

    Computes scores, loss and gradient in chunks that fit the CPU cache and never holds all scores: on two cores a step
    is a third faster than with `torch.nn.functional.cross_entropy`, which passes over the whole table several times.
    """
    learning = torch.is_grad_enabled() and (hidden.requires_grad or table.requires_grad)
    loss: Tensor = _SmoothedLoss.apply(hidden, table, wanted, smoothing, learning)  # type: ignore[no-untyped-call]
    return loss


class _SmoothedLoss(torch.autograd.Function):
    """Computes the gradient together with the loss, in one pass."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, table: Tensor, wanted: Tensor, smoothing: float, learning: bool) -> Tensor:
        even = smoothing / len(table)
        loss = hidden.new_zeros((), dtype=torch.float32)
        to_hidden, to_table = torch.empty_like(hidden), torch.zeros_like(table)
        for first in range(0, len(hidden), _CHUNK):
            part, aim = hidden[first : first + _CHUNK], wanted[first : first + _CHUNK, None]
            scores = (part @ table.T).float()
            whole = scores.logsumexp(dim=1, keepdim=True)
            loss += whole.sum() - (1 - smoothing) * scores.gather(1, aim).sum() - even * scores.sum()
            if learning:
                slope = scores.sub_(whole).exp_().sub_(even)
                slope.scatter_add_(1, aim, slope.new_full(aim.shape, smoothing - 1))
                slope = slope.to(part.dtype)
                to_hidden[first : first + _CHUNK] = slope @ table
                to_table.addmm_(slope.T.to(table.dtype), part.to(table.dtype))
        ctx.save_for_backward(to_hidden, to_table)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        to_hidden, to_table = ctx.saved_tensors
        scale = grads[0]
        return to_hidden * scale.to(to_hidden.dtype), to_table * scale.to(to_table.dtype), None, None, None


class Heads(NamedTuple):
    """Keys and values, each (rows, heads, tokens, width per head)."""

    keys: Tensor
    values: Tensor


class DecoderCache(NamedTuple):
    """Key/value cache: per layer, the heads of the source sentences and of the tokens written so far."""

    read: tuple[Heads, ...]
    visible: Tensor | None  # mask of real source tokens; None if nothing is padding
    written: tuple[Heads, ...]
    length: int

    def of(self, rows: Tensor, sentences: Tensor | None = None) -> DecoderCache:
        """Select rows, and sentences if given, for a search that drops and duplicates candidates."""
        written = tuple(Heads(keys[rows], values[rows]) for keys, values in self.written)
        if sentences is None:
            return self._replace(written=written)
        read = tuple(Heads(keys[sentences], values[sentences]) for keys, values in self.read)
        visible = None if self.visible is None else self.visible[sentences]
        return DecoderCache(read, visible, written, self.length)


class Attention(nn.Module):
    """Multi-head attention (fused, `scaled_dot_product_attention`)."""

    def __init__(self, cfg: Config, *, across: bool) -> None:
        super().__init__()
        width, self.heads = cfg.shape.d_model, cfg.shape.heads
        self.dropout = cfg.attention_dropout
        self.rotary = cfg.positions == "rotary" and not across
        if across:
            self.ask, self.look = nn.Linear(width, width), nn.Linear(width, 2 * width)
        else:
            self.all = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def within(self, x: Tensor, *, visible: Tensor | None, causal: bool, before: Heads | None) -> tuple[Tensor, Heads]:
        """Self-attention to the same tokens and those `before`; also returns the heads of both."""
        queries, keys, values = (self._by_head(part) for part in self.all(x).chunk(3, dim=2))
        if self.rotary:
            start = 0 if before is None else before.keys.shape[2]
            table = _angles(start, x.shape[1], queries.shape[3], x.device)
            queries, keys = _turned(queries, table), _turned(keys, table)
        if before is not None:
            keys = torch.cat([before.keys, keys], dim=2)
            values = torch.cat([before.values, values], dim=2)
        heads = Heads(keys, values)
        return self._attended(queries, heads, visible, causal=causal and before is None), heads

    def read(self, sentences: Tensor) -> Heads:
        """Compute keys and values of the sentences, once."""
        keys, values = (self._by_head(part) for part in self.look(sentences).chunk(2, dim=2))
        return Heads(keys, values)

    def across(self, x: Tensor, heads: Heads, visible: Tensor | None) -> Tensor:
        """Cross-attention to the sentences; rows of one sentence are adjacent."""
        rows, length, width = x.shape
        asked = self._by_head(self.ask(x).view(heads.keys.shape[0], -1, width))
        return self._attended(asked, heads, visible, causal=False).view(rows, length, width)

    def looks(self, x: Tensor, heads: Heads) -> Tensor:
        """Return cross-attention weights (rows, length, tokens), averaged over heads."""
        asked = self._by_head(self.ask(x))
        found = asked @ heads.keys.transpose(2, 3) / math.sqrt(asked.shape[3])
        return found.softmax(dim=3).mean(dim=1)

    def _attended(self, queries: Tensor, heads: Heads, visible: Tensor | None, *, causal: bool) -> Tensor:
        found = functional.scaled_dot_product_attention(
            queries,
            heads.keys,
            heads.values,
            attn_mask=visible,
            is_causal=causal,
            dropout_p=self.dropout if self.training else 0.0,
        )
        output: Tensor = self.out(found.transpose(1, 2).flatten(2))
        return output

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class Residual(nn.Module):
    """Residual connection with layer norm before (pre) or after (post) the sublayer."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.pre = cfg.norm == "pre"
        self.norm = nn.LayerNorm(cfg.shape.d_model)
        self.dropout = nn.Dropout(cfg.dropout)

    def given(self, x: Tensor) -> Tensor:
        before: Tensor = self.norm(x) if self.pre else x
        return before

    def added(self, x: Tensor, answer: Tensor) -> Tensor:
        both = x + self.dropout(answer)
        after: Tensor = both if self.pre else self.norm(both)
        return after


class FeedForward(nn.Sequential):
    def __init__(self, cfg: Config) -> None:
        width, inner = cfg.shape.d_model, cfg.shape.dim_feedforward
        super().__init__(nn.Linear(width, inner), nn.ReLU(inplace=True), nn.Linear(inner, width))


class EncoderLayer(nn.Module):
    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.attention, self.forward_layer = Attention(cfg, across=False), FeedForward(cfg)
        self.first, self.second = Residual(cfg), Residual(cfg)

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        answer, _ = self.attention.within(self.first.given(x), visible=visible, causal=False, before=None)
        x = self.first.added(x, answer)
        return self.second.added(x, self.forward_layer(self.second.given(x)))


class DecoderLayer(nn.Module):
    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.attention, self.reading = Attention(cfg, across=False), Attention(cfg, across=True)
        self.forward_layer = FeedForward(cfg)
        self.first, self.second, self.third = Residual(cfg), Residual(cfg), Residual(cfg)

    def forward(
        self, x: Tensor, read: Heads, visible: Tensor | None, before: Heads | None = None
    ) -> tuple[Tensor, Heads]:
        """Return the layer's output, and its keys and values appended to those `before`."""
        answer, heads = self.attention.within(self.first.given(x), visible=None, causal=True, before=before)
        x = self.first.added(x, answer)
        x = self.second.added(x, self.reading.across(self.second.given(x), read, visible))
        return self.third.added(x, self.forward_layer(self.third.given(x))), heads

    def looks(self, x: Tensor, read: Heads) -> Tensor:
        """Return cross-attention weights (rows, length, tokens)."""
        answer, _ = self.attention.within(self.first.given(x), visible=None, causal=True, before=None)
        return self.reading.looks(self.second.given(self.first.added(x, answer)), read)


class Translator(nn.Module):
    """Encoder, decoder and tokenizer. The state dict includes the tokenizer, without which the weights are useless."""

    def __init__(self, cfg: Config, tokenizer: BpeTokenizer) -> None:
        super().__init__()
        shape, size = cfg.shape, len(tokenizer)
        if shape.d_model % (2 * shape.heads):
            raise BadInput(
                f"d_model {shape.d_model} cannot be divided into {shape.heads} heads of an even size",
                where="config",
                fix=f"set d_model to a multiple of {2 * shape.heads}",
            )
        self.tokenizer = tokenizer
        self.label_smoothing, self._sinusoidal = cfg.label_smoothing, cfg.positions == "sinusoidal"
        self.source = nn.Embedding(size, shape.d_model)
        self.own_target = None if cfg.tied else nn.Embedding(size, shape.d_model)
        self.own_scores = None if cfg.tied else nn.Embedding(size, shape.d_model)
        self.dropout = nn.Dropout(cfg.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(cfg) for _ in range(shape.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(cfg) for _ in range(shape.decoder_layers))
        last = nn.LayerNorm if cfg.norm == "pre" else nn.Identity
        self.encoded, self.decoded = last(shape.d_model), last(shape.d_model)
        self._begin()

    def _begin(self) -> None:
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        for table in (self.source, self.own_target, self.own_scores):
            if table is not None:
                nn.init.normal_(table.weight, std=table.embedding_dim**-0.5)

    @property
    def _target(self) -> nn.Embedding:
        return self.source if self.own_target is None else self.own_target

    @property
    def table(self) -> Tensor:
        """Output embedding: scores are products of decoder outputs with its rows."""
        return (self.source if self.own_scores is None else self.own_scores).weight

    def forward(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summed loss of `target` (rows, length), and the number of tokens it sums over."""
        read, visible = self._read(source)
        wanted = target[:, 1:]
        real = wanted != PAD
        understood = self.understood(target[:, :-1], read, visible)[real]
        return smoothed_loss(understood, self.table, wanted[real], self.label_smoothing), real.sum()

    def understood(self, written: Tensor, read: Sequence[Heads], visible: Tensor | None) -> Tensor:
        """Return decoder outputs for all tokens `written` (rows, length): scores are their products with `table`."""
        x = self._embedded(self._target, written, 0)
        for layer, heads in zip(self.decoder, read, strict=True):
            x, _ = layer(x, heads, visible)
        found: Tensor = self.decoded(x)
        return found

    @torch.inference_mode()
    def looks(self, source: Tensor, written: Tensor) -> Tensor:
        """Return each target token's attention to its sentence, averaged over layers. Expects no padding."""
        read, _ = self._read(source)
        x = self._embedded(self._target, written, 0)
        found = []
        for layer, heads in zip(self.decoder, read, strict=True):
            found.append(layer.looks(x, heads))  # type: ignore[operator]
            x, _ = layer(x, heads, None)
        return torch.stack(found).mean(dim=0)

    def heads_of(self, source: Tensor, visible: Tensor | None) -> tuple[Heads, ...]:
        """Encode the sentences and return the keys and values that each decoder layer attends to."""
        x = self._embedded(self.source, source, 0)
        for layer in self.encoder:
            x = layer(x, visible)
        sentences = self.encoded(x)
        return tuple(layer.reading.read(sentences) for layer in self.decoder)  # type: ignore[operator,union-attr]

    def read(self, source: Tensor) -> DecoderCache:
        """Encode the sentences (rows, length) and return an empty decoder cache."""
        read, visible = self._read(source)
        return DecoderCache(read, visible, (), 0)

    def write(self, words: Tensor, memory: DecoderCache) -> tuple[Tensor, DecoderCache]:
        """Return the scores of the token after `words`, one per row, and the extended cache."""
        x = self._embedded(self._target, words[:, None], memory.length)
        written = []
        before: Sequence[Heads | None] = memory.written or [None] * len(memory.read)
        for layer, read, mine in zip(self.decoder, memory.read, before, strict=True):
            x, heads = layer(x, read, memory.visible, mine)
            written.append(heads)
        scores = functional.linear(self.decoded(x[:, 0]), self.table)
        return scores, memory._replace(written=tuple(written), length=memory.length + 1)

    def _read(self, source: Tensor) -> tuple[tuple[Heads, ...], Tensor | None]:
        """Encode the sentences. Creates a mask only if there is padding: attention is faster without one."""
        real = source != PAD
        visible = None if bool(real.all()) else real[:, None, None]
        return self.heads_of(source, visible), visible

    def _embedded(self, table: nn.Embedding, tokens: Tensor, start: int) -> Tensor:
        x: Tensor = table(tokens) * math.sqrt(table.embedding_dim)
        if self._sinusoidal:
            x = x + _angles(start, tokens.shape[1], table.embedding_dim, x.device).flatten(1)
        embedded: Tensor = self.dropout(x)
        return embedded

    def get_extra_state(self) -> str:
        return self.tokenizer.to_json()

    def set_extra_state(self, state: str) -> None:
        if state != self.tokenizer.to_json():
            raise BadInput(
                "the weights were trained with other subwords than those of this data",
                fix="restore the data that the weights were trained on, or start a new run",
            )


def rebuild(cfg: Config, state: Mapping[str, Any]) -> Translator:
    """Rebuild the translator from its state dict, in eval mode."""
    model = Translator(cfg, tokenizer_from(state["_extra_state"]))
    model.load_state_dict(dict(state))
    return model.eval()


def tokenizer_from(text: str | bytes, where: str = "tokenizer.json") -> BpeTokenizer:
    found = load_tokenizer(text, where=where)
    if not isinstance(found, BpeTokenizer):
        raise BadInput(
            "the file contains a vocabulary of words, not of subwords",
            where=where,
            fix="prepare parallel text for translation",
        )
    return found


def _angles(start: int, length: int, width: int, device: torch.device) -> Tensor:
    """Return sine and cosine of each position at each frequency: (length, 2, width / 2)."""
    places = torch.arange(start, start + length, device=device, dtype=torch.float32)
    rates = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(10_000.0) / width))
    turns = places[:, None] * rates
    return torch.stack([turns.sin(), turns.cos()], dim=1)


def _turned(heads: Tensor, table: Tensor) -> Tensor:
    """Apply rotary position embedding: rotate each pair of numbers by its position's angle."""
    sin, cos = table.to(heads.dtype).unbind(1)
    left, right = heads.chunk(2, dim=3)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=3)
