"""Export of a translator as a bundle, and prediction and serving from a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from headway.artifacts.predictor import Answer, Field, Instance, bad_request
from headway.bundle.format import Bundle, BundleParts
from headway.core.errors import BadInput
from headway.data.text import END, START, BpeTokenizer
from headway.recipes.bundling import CardText, bundle_parts
from headway.recipes.common import load_weights
from headway.recipes.translation.beam_search import translate_all
from headway.recipes.translation.config import Config
from headway.recipes.translation.model import Translator, tokenizer_from
from headway.spec import Job
from headway.spec.loading import from_plain

TOKENIZER: Final = "tokenizer.json"


def bundle(model: Translator, cfg: Config, job: Job, scores: Mapping[str, float]) -> BundleParts:
    """Collect weights, config, tokenizer and model card. `scores` are the validation scores of these weights."""
    from headway.recipes.translation.data import PHRASES  # imports data dependencies that a server lacks

    shape = cfg.shape
    text = CardText(
        summary=(
            f"Translates sentences. A Transformer of {shape.encoder_layers} + {shape.decoder_layers} layers, "
            f"{shape.d_model} wide, with {len(model.tokenizer)} subwords."
        ),
        example='"a sentence"',
        generated=(PHRASES, "The made-up language is"),
        files={TOKENIZER: "the subwords (its `rules` are a file of the `tokenizers` library)"},
        limits=(
            f"It translates one sentence of up to {cfg.max_length} subwords at a time, in the manner of the texts it "
            "was trained on."
        ),
        validated="on validation, greedy",
    )
    files = {TOKENIZER: model.tokenizer.to_json().encode()}
    return bundle_parts(model, cfg, job, scores, recipe="translation", files=files, text=text)


class Predictor:
    """Translates texts with the model of a bundle."""

    def __init__(self, bundle: Bundle) -> None:
        self.config = from_plain(bundle.config, Config, where=f"{bundle.url}/config.json")
        self.model = Translator(self.config, tokenizer_from(bundle.read(TOKENIZER), where=f"{bundle.url}/{TOKENIZER}"))
        load_weights(self.model, bundle)

    def __call__(self, inputs: Sequence[str]) -> list[dict[str, Any]]:
        """Translate texts: one {"input", "text"} per text, in order. An empty text translates to an empty text."""
        for text in inputs:
            self.check(text)
        asked = [text for text in inputs if text.strip()]
        cfg = self.config
        translations = translate_all(
            self.model, asked, max_length=cfg.max_length, beam=cfg.beam, length_penalty=cfg.length_penalty
        )
        answers = iter(translations)
        return [{"input": text, "text": next(answers) if text.strip() else ""} for text in inputs]

    def check(self, text: str) -> None:
        """Raise BadInput for a text longer than any the model was trained on."""
        tokens = len(self.model.tokenizer.encode(text))
        if tokens > self.config.max_length:
            raise BadInput(
                f"{tokens} subwords are too many: the longest training sentence has {self.config.max_length}",
                where=text[:40] + "…",
                fix="split it into sentences",
            )


# Serving: translations for requests, with word-level attention on demand.


_MOST = 120  # subwords per sentence or translation: a larger table explains nothing


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

    def _attention(self, text: str, translation: str) -> Answer:
        """Return the attention of each target word (rows) to each source word (columns)."""
        model = self._predictor.model
        given, made = model.tokenizer.encode(text), model.tokenizer.encode(translation)
        if not given or not made or max(len(given), len(made)) > _MOST:
            return {}
        looks = model.looks(torch.tensor([[*given, END]]), torch.tensor([[START, *made]]))[0]
        source, columns = _words(model.tokenizer, given)
        target, rows = _words(model.tokenizer, made)
        # Row t belongs to the token after the t-th; the end of the sentence, which is not a word, is left out.
        table = [
            [float(looks[first:last, left:right].sum(dim=1).mean()) for left, right in columns] for first, last in rows
        ]
        return {"source": source, "target": target, "attention": [[round(cell, 4) for cell in row] for row in table]}


def _words(tokenizer: BpeTokenizer, tokens: Sequence[int]) -> tuple[list[str], list[tuple[int, int]]]:
    """Merge subwords: return the words and the token range of each."""
    words, spans, begun = [], [], 0
    for end in range(1, len(tokens) + 1):
        # A token starts a word if it decodes with a leading space; decoding up to here shows whether the next one does.
        whole = tokenizer.decode(tokens[begun:end])
        following = tokenizer.decode(tokens[begun : end + 1])[len(whole) :] if end < len(tokens) else " "
        if following.startswith(" "):
            words.append(whole)
            spans.append((begun, end))
            begun = end
    return words, spans
