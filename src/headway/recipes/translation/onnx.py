"""ONNX export of a translator as two graphs: the encoder, run once per sentence, and the decoder, run once per token.

The calling program starts with <start> (1), appends the token it chooses, and stops at <end> (2). Sentences are
subwords of tokenizer.json, each ended by <end> and padded with <pad> (0).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from headway.artifacts.onnx import BATCH, Graph
from headway.data.text import END, PAD, START
from headway.recipes.translation.config import Config
from headway.recipes.translation.model import Heads, Translator


class EncoderGraph(nn.Module):
    """Keys and values of the sentences, each (layers, sentences, heads, tokens, width per head)."""

    def __init__(self, model: Translator) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor) -> tuple[Tensor, Tensor]:
        heads = self.model.heads_of(source, _visible(source))
        return torch.stack([each.keys for each in heads]), torch.stack([each.values for each in heads])


class DecoderGraph(nn.Module):
    """Log-probabilities of the token after `written`, which begins with <start>."""

    def __init__(self, model: Translator) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, keys: Tensor, values: Tensor, written: Tensor) -> Tensor:
        read = [Heads(*each) for each in zip(keys.unbind(0), values.unbind(0), strict=True)]
        understood = self.model.understood(written, read, _visible(source))
        scores = functional.linear(understood[:, -1], self.model.table)
        return scores.float().log_softmax(dim=1)


def _visible(source: Tensor) -> Tensor:
    return (source != PAD)[:, None, None]


def graphs(model: Translator, cfg: Config) -> list[Graph]:
    """Return the graphs `reads` (once per sentence) and `writes` (once per token)."""
    reads, writes = EncoderGraph(model.eval()), DecoderGraph(model)
    first, second = _example(len(model.tokenizer), 2, 7, 4), _example(len(model.tokenizer), 3, 9, 5)
    length = {0: BATCH, 1: "length"}
    heads = {1: BATCH, 3: "length"}
    return [
        Graph(
            name="reads",
            module=reads,
            inputs={"source": first[0]},
            outputs=("keys", "values"),
            dynamic={"source": length},
            more=[{"source": second[0]}],
            about="sentences as subwords, to the keys and values that `writes` takes",
        ),
        Graph(
            name="writes",
            module=writes,
            inputs=_asked(reads, *first),
            outputs=("scores",),
            dynamic={"source": length, "keys": heads, "values": heads, "written": {0: BATCH, 1: "written"}},
            more=[_asked(reads, *second)],
            about="log-probabilities of the next token, given the tokens so far",
        ),
    ]


def _asked(reads: EncoderGraph, source: Tensor, written: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        keys, values = reads(source)
    return {"source": source, "keys": keys, "values": values, "written": written}


def _example(size: int, count: int, length: int, written: int) -> tuple[Tensor, Tensor]:
    """Return sentences of different lengths, so that the trace includes padding."""
    source = torch.arange(count * length).view(count, length) % (size - 4) + 4
    source[:, -1] = END
    source[0, -2:] = torch.tensor([END, PAD])
    written_tokens = torch.arange(count * written).view(count, written) % (size - 4) + 4
    written_tokens[:, 0] = START
    return source, written_tokens
