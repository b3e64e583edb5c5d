"""Translations for the sentences that a server was sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.bundle import Bundle
from headway.errors import BadInput
from headway.recipes.translation.predict import Predictor
from headway.serve.problems import bad_request
from headway.serve.service import Answer, Field, Instance


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
        return [{"text": each["text"]} for each in self._predictor(list(prepared))]
