"""Translations for the sentences that a server was sent, and which words each of their words was taken from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headway.bundle import Bundle
from headway.data.text import END, START, BpeTokenizer
from headway.errors import BadInput
from headway.recipes.translation.predict import Predictor
from headway.serve.problems import bad_request
from headway.serve.service import Answer, Field, Instance

_MOST = 120  # subwords of a sentence or its translation: a larger table explains nothing


class TranslationService:
    fields = (Field(name="text", kind="text", summary="a sentence to translate"),)

    def __init__(self, bundle: Bundle) -> None:
        self._predictor = Predictor(bundle)

    def prepare(self, instance: Instance) -> str:
        text: str = instance["text"]
        try:
            self._predictor.check(text)
        except BadInput as error:
            raise bad_request(error.problem.what) from None
        return text

    def answer(self, prepared: Sequence[Any], *, explain: bool) -> list[Answer]:
        answers: list[Answer] = [{"text": each["text"]} for each in self._predictor(list(prepared))]
        if explain:
            for text, answer in zip(prepared, answers, strict=True):
                answer |= self._attention(text, answer["text"])
        return answers

    def _attention(self, text: str, said: str) -> Answer:
        """A row for each word that was said, a column for each that was given: how much the one looked at the other."""
        model = self._predictor.model
        given, made = model.tokenizer.encode(text), model.tokenizer.encode(said)
        if not given or not made or max(len(given), len(made)) > _MOST:
            return {}
        looks = model.looks(torch.tensor([[*given, END]]), torch.tensor([[START, *made]]))[0]
        source, columns = _words(model.tokenizer, given)
        target, rows = _words(model.tokenizer, made)
        # Row t is of the token after the t-th; the sentence's end, which is no word, is left out.
        table = [
            [float(looks[first:last, left:right].sum(dim=1).mean()) for left, right in columns] for first, last in rows
        ]
        return {"source": source, "target": target, "attention": [[round(cell, 4) for cell in row] for row in table]}


def _words(tokenizer: BpeTokenizer, tokens: Sequence[int]) -> tuple[list[str], list[tuple[int, int]]]:
    """Subwords put together: the words, and from which to which token each of them goes."""
    words, spans, begun = [], [], 0
    for end in range(1, len(tokens) + 1):
        # A token begins a word where it brings a space with it; the text up to here shows whether the next one does.
        whole = tokenizer.decode(tokens[begun:end])
        following = tokenizer.decode(tokens[begun : end + 1])[len(whole) :] if end < len(tokens) else " "
        if following.startswith(" "):
            words.append(whole)
            spans.append((begun, end))
            begun = end
    return words, spans
