"""Beam search, held against trying everything, and against each sentence by itself."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from headway.data.text import END, PAD, START, UNKNOWN
from headway.recipes.translation.beam_search import batches_by_length, translate, translate_all
from headway.recipes.translation.model import Translator
from tests.recipes.translation.tiny import translator

LENGTH, PENALTY = 4, 0.8
SAYABLE = (100, 101)
SOURCE = torch.tensor([[50, 60, 70, 40, END], [80, 90, END, PAD, PAD], [41, 42, 43, END, PAD]])


def decisive() -> Translator:
    """A model that can say two words, and whose scores differ from sentence to sentence and word to word."""
    model = translator()
    write = model.write

    def two_words(words: Tensor, memory: object) -> tuple[Tensor, object]:
        scores, after = write(words, memory)  # type: ignore[arg-type]
        heard = torch.full_like(scores, float("-inf"))
        kept = [*SAYABLE, END]
        heard[:, kept] = scores[:, kept] * 3
        return heard, after

    model.write = two_words  # type: ignore[method-assign,assignment]
    return model


def chance(model: Translator, source: Tensor, words: list[int]) -> float:
    memory, total = model.read(source[None]), 0.0
    for given, wanted in zip([START, *words], words, strict=False):
        scores, memory = model.write(torch.tensor([given]), memory)
        total += float(scores.log_softmax(1)[0, wanted])
    return total


def every_translation() -> list[list[int]]:
    bodies = [list(body) for length in range(LENGTH) for body in product(SAYABLE, repeat=length)]
    return [[*body, END] for body in bodies] + [list(body) for body in product(SAYABLE, repeat=LENGTH)]


@torch.no_grad()
def test_a_wide_beam_finds_the_best_of_all_translations() -> None:
    model = decisive()
    found = translate(model, SOURCE, max_length=LENGTH, beam=20, length_penalty=PENALTY)
    for source, words in zip(SOURCE, found, strict=True):
        real = source[source != PAD]
        best = max(every_translation(), key=lambda said: chance(model, real, said) / len(said) ** PENALTY)
        assert [word for word in words if word != PAD] == best


@torch.no_grad()
def test_a_beam_of_one_takes_the_likeliest_word_each_time() -> None:
    model = translator()
    (said,) = translate(model, SOURCE[1:2, :3], max_length=6)
    memory, word = model.read(SOURCE[1:2, :3]), START
    for wanted in said:
        scores, memory = model.write(torch.tensor([word]), memory)
        scores[:, [PAD, START, UNKNOWN]] = float("-inf")
        word = int(scores.argmax())
        assert word == wanted


@pytest.mark.parametrize("beam", [1, 3])
def test_a_sentence_is_translated_alike_alone_and_in_company(beam: int) -> None:
    """Also when its neighbours end earlier and leave."""
    model = decisive()
    together = translate(model, SOURCE, max_length=12, beam=beam)
    for row, source in enumerate(SOURCE):
        alone = translate(model, source[source != PAD][None], max_length=12, beam=beam)[0]
        assert [w for w in together[row] if w != PAD] == [w for w in alone if w != PAD]


def test_texts_come_back_in_their_order_whatever_their_lengths() -> None:
    model = translator()
    texts = ["a red ball", "two", "two red balls two red balls", ""]
    one_by_one = [translate_all(model, [text], max_length=20, beam=2)[0] for text in texts]
    assert translate_all(model, texts, max_length=20, beam=2) == one_by_one


def test_batches_hold_what_fits_and_every_row_once() -> None:
    lengths = [3, 50, 7, 7, 20, 1, 90]
    groups = list(batches_by_length(lengths, 60))
    assert sorted(row for group in groups for row in group) == list(range(7))
    assert all(len(group) * max(lengths[row] for row in group) <= 60 or len(group) == 1 for group in groups)
