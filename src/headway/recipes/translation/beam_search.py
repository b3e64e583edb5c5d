"""Beam search over all sentences of a batch; a beam of one is greedy.

Finished sentences leave the batch, so that a long one does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headway.core.progress import report_progress
from headway.data.text import END, PAD, START, UNKNOWN
from headway.recipes.translation.model import DecoderCache, Translator

_NEG_INF = (PAD, START, UNKNOWN)  # tokens that a translation never contains
_EXTRA_LENGTH = 10  # extra tokens allowed for a short sentence
_ROOM = 3000  # source tokens per batch, times the beam


class _Beams(NamedTuple):
    """The candidates of each unfinished sentence, best first."""

    sentence: Tensor  # (n) index in the batch
    tokens: Tensor  # (n, beam, tokens so far)
    total: Tensor  # (n, beam) log-probability
    length: Tensor  # (n, beam) tokens, including <end>
    ended: Tensor  # (n, beam)


@torch.inference_mode()
def translate(
    model: Translator, source: Tensor, *, max_length: int, beam: int = 1, length_penalty: float = 1.0
) -> list[list[int]]:
    """Return the tokens of the best translation of each sentence (rows of `source`, ended by <end>, padded).

    None is longer than `max_length`, nor than twice its sentence plus 10 tokens.
    """
    memory = model.read(source)
    beams = _start(len(source), beam, source.device)
    limit = (2 * (source != PAD).sum(dim=1) + _EXTRA_LENGTH).clamp(max=max_length)
    found: list[list[int]] = [[] for _ in range(len(source))]
    for step in range(max_length):
        beams, memory = _extend(model, beams, memory, length_penalty)
        done = beams.ended.all(dim=1) | (limit[beams.sentence] <= step + 1)
        if bool(done.any()):
            for number, tokens in zip(beams.sentence[done].tolist(), beams.tokens[done, 0].tolist(), strict=True):
                found[number] = tokens
            beams, memory = _drop_ended(beams, memory, ~done)
        if not len(beams.sentence):
            break
    return found


def _start(sentences: int, beam: int, device: torch.device) -> _Beams:
    total = torch.full((sentences, beam), float("-inf"), device=device)
    total[:, 0] = 0  # all candidates start out equal: let only one of them branch
    return _Beams(
        sentence=torch.arange(sentences, device=device),
        tokens=torch.empty(sentences, beam, 0, dtype=torch.int64, device=device),
        total=total,
        length=torch.zeros(sentences, beam, device=device),
        ended=torch.zeros(sentences, beam, dtype=torch.bool, device=device),
    )


def _extend(model: Translator, beams: _Beams, memory: DecoderCache, penalty: float) -> tuple[_Beams, DecoderCache]:
    """Extend every candidate by one token and keep the best, by log-probability / tokens ^ penalty."""
    count, beam, spoken = beams.tokens.shape
    last = beams.tokens[:, :, -1] if spoken else torch.full((count, beam), START, device=beams.tokens.device)
    scores, memory = model.write(last.flatten(), memory)
    scores.index_fill_(1, torch.tensor(_NEG_INF, device=scores.device), float("-inf"))
    gains = _keep_ended(scores.float().log_softmax(dim=1).view(count, beam, -1), beams.ended)
    totals = beams.total[:, :, None] + gains
    lengths = beams.length + ~beams.ended
    best = (totals / lengths[:, :, None] ** penalty).flatten(1).topk(beam, dim=1).indices
    origin, chosen = best // gains.shape[2], best % gains.shape[2]
    ended = beams.ended.gather(1, origin)
    word = torch.where(ended, PAD, chosen)
    tokens = torch.cat([beams.tokens.gather(1, origin[:, :, None].expand(-1, -1, spoken)), word[:, :, None]], dim=2)
    first_row = torch.arange(count, device=word.device)[:, None] * beam
    grown = _Beams(
        beams.sentence, tokens, totals.flatten(1).gather(1, best), lengths.gather(1, origin), ended | (chosen == END)
    )
    return grown, memory.of((first_row + origin).flatten()) if beam > 1 else memory


def _keep_ended(gains: Tensor, ended: Tensor) -> Tensor:
    """Give an ended candidate one successor, itself, at no cost, in the slot of END."""
    gains.masked_fill_(ended[:, :, None], float("-inf"))
    gains[:, :, END] = torch.where(ended, 0.0, gains[:, :, END])
    return gains


def _drop_ended(beams: _Beams, memory: DecoderCache, kept: Tensor) -> tuple[_Beams, DecoderCache]:
    rows = kept[:, None].expand(beams.ended.shape).flatten().nonzero()[:, 0]
    sentences = kept.nonzero()[:, 0]
    return _Beams(*(part[sentences] for part in beams)), memory.of(rows, sentences)


def translate_all(
    model: Translator, texts: Sequence[str], *, max_length: int, beam: int = 1, length_penalty: float = 1.0
) -> list[str]:
    """Translate texts, batched by similar length."""
    tokens = [[*model.tokenizer.encode(text)[:max_length], END] for text in texts]
    answers = [""] * len(texts)
    device = model.source.weight.device
    done = 0
    for rows in batches_by_length([len(one) for one in tokens], _ROOM // beam):
        report_progress("translating", done, len(texts))
        done += len(rows)
        source = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(tokens[row]) for row in rows], batch_first=True, padding_value=PAD
        )
        source = source.to(device)
        translations = translate(model, source, max_length=max_length, beam=beam, length_penalty=length_penalty)
        for row, ids in zip(rows, translations, strict=True):
            answers[row] = model.tokenizer.decode(ids)
    return answers


def batches_by_length(lengths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Yield groups of rows whose padded size stays below `room`, longest first."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    while order:
        size = max(1, room // max(1, lengths[order[0]]))
        yield order[:size]
        order = order[size:]
