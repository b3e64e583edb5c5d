"""Scores of a model's answers by the types of its outputs, per sample where a metric is a mean over samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from headway.artifacts.evaluate import Baseline, Example, Table, extremes
from headway.artifacts.media import open_picture
from headway.artifacts.outputs import plain_output, shares, text_output
from headway.core.errors import BadInput
from headway.metrics.samples import of_grades, of_values
from headway.model import Caption, Classes, Labels, Number, Ordinal, Picture, Tensor, Text

SHOWN: Final = 24  # examples in the report


@dataclass(frozen=True, kw_only=True)
class OutputScores:
    """The scores of one output: metrics, each sample's part in them, a quality per sample to sort examples by."""

    metrics: Mapping[str, float]
    samples: Mapping[str, Any]
    quality: Sequence[float]
    right: Sequence[bool | None]
    baseline: Baseline | None = None
    tables: Sequence[Table] = field(default_factory=tuple)


def score_output(name: str, declared: Any, answers: Sequence[Any], truth: Sequence[Any]) -> OutputScores:
    """Score one output of all samples. Raises BadInput for a truth of another type, or a type without scores."""
    for kinds, scorer in _SCORERS:
        if isinstance(declared, kinds):
            try:
                return scorer(declared, answers, truth)
            except (ValueError, TypeError, KeyError) as error:
                raise BadInput(f"the column {name} has values that are no {type(declared).__name__}: {error}") from None
    raise BadInput(
        f"Headway has no metric for outputs of the type {type(declared).__name__}",
        fix="write evaluate(self, data) in the model class, which returns headway.Scores",
    )


def _classes(declared: Classes, answers: Sequence[Any], truth: Sequence[Any]) -> OutputScores:
    names = list(declared.names)
    chances = np.array([list(shares(_plain(answer), names).values()) for answer in answers])
    labels = np.array([names.index(str(each)) for each in truth])
    guesses = chances.argmax(axis=1)
    right, rows = guesses == labels, np.arange(len(labels))
    top = (np.argsort(-chances, axis=1)[:, : declared.top] == labels[:, None]).any(axis=1)
    samples = {"accuracy": of_values(right)}
    if len(names) > declared.top:
        samples[f"top_{declared.top}"] = of_values(top)
    always = int(np.bincount(labels, minlength=len(names)).argmax())
    per_class = [[names[at], int((labels == at).sum()), float(right[labels == at].mean())] for at in np.unique(labels)]
    return OutputScores(
        metrics=_means(samples),
        samples=samples,
        quality=chances[rows, labels].tolist(),
        right=right.tolist(),
        baseline=Baseline(
            words=f"always predicts {names[always]}, the most frequent class",
            metrics={"accuracy": float((labels == always).mean())},
        ),
        tables=[Table(name="per_class", title="Scores per class", head=("class", "samples", "recall"), rows=per_class)],
    )


def _ordinal(declared: Ordinal, answers: Sequence[Any], truth: Sequence[Any]) -> OutputScores:
    from headway.metrics.ordinal import OrdinalScores

    guesses = np.array([plain_output(answer, declared)["grade"] for answer in answers])
    labels = np.array([int(float(each)) for each in truth])
    counted = OrdinalScores(declared.grades)
    counted.add(labels, guesses)
    off = np.abs(guesses - labels)
    samples = {
        "qwk": of_grades(labels - declared.low, guesses - declared.low, len(declared.grades)),
        "mae": of_values(off),
        "accuracy": of_values(off == 0),
        "within_one": of_values(off <= 1),
    }
    found = {name: value for name, value in counted.metrics().items() if value is not None and name in samples}
    middle = int(np.sort(labels)[len(labels) // 2])
    words = f"always predicts {middle}, the median"
    baseline = Baseline(words=words, metrics={"mae": float(np.abs(labels - middle).mean())})
    right = (off == 0).tolist()
    return OutputScores(metrics=found, samples=samples, quality=(-off).tolist(), right=right, baseline=baseline)


def _number(_: Number, answers: Sequence[Any], truth: Sequence[Any]) -> OutputScores:
    guesses, labels = (np.array([float(each) for each in side]) for side in (answers, truth))
    off = guesses - labels
    samples = {"mae": of_values(np.abs(off)), "mse": of_values(off**2)}
    spread = float(((labels - labels.mean()) ** 2).mean())
    r2 = {"r2": 1 - float((off**2).mean()) / spread} if spread else {}
    middle = float(np.median(labels))
    baseline = Baseline(
        words=f"always predicts {middle:.4g}, the median", metrics={"mae": float(np.abs(labels - middle).mean())}
    )
    return OutputScores(
        metrics={**_means(samples), **r2},
        samples=samples,
        quality=(-np.abs(off)).tolist(),
        right=[None] * len(labels),
        baseline=baseline,
    )


def _text(_: Any, answers: Sequence[Any], truth: Sequence[Any]) -> OutputScores:
    import difflib

    pairs = [(str(answer).strip(), str(expected).strip()) for answer, expected in zip(answers, truth, strict=True)]
    exact = [answer == expected for answer, expected in pairs]
    alike = [difflib.SequenceMatcher(None, *pair, autojunk=False).ratio() for pair in pairs]
    samples = {"exact": of_values(exact), "similarity": of_values(alike)}
    return OutputScores(metrics=_means(samples), samples=samples, quality=alike, right=exact)


def _labels(declared: Labels, answers: Sequence[Any], truth: Sequence[Any]) -> OutputScores:
    names = list(declared.names)
    scores = np.array([list(shares(_plain(answer), names).values()) for answer in answers])
    given = [json.loads(each) if isinstance(each, str) and each.startswith("[") else each for each in truth]
    wanted = np.array(
        [[name in (each.split("|") if isinstance(each, str) else each) for name in names] for each in given]
    )
    right = (scores >= 0.5) == wanted
    samples = {"accuracy": of_values(right.mean(axis=1)), "exact": of_values(right.all(axis=1))}
    return OutputScores(
        metrics=_means(samples), samples=samples, quality=right.mean(axis=1).tolist(), right=right.all(axis=1).tolist()
    )


def _pictures(_: Picture, answers: Sequence[Any], truth: Sequence[Any]) -> OutputScores:
    """Score by overlap of the bright parts (a mask), and by the mean difference. The truth is a picture's path."""
    overlaps, differences = [], []
    for answer, expected in zip(answers, truth, strict=True):
        wanted = np.asarray(open_picture(str(expected)).convert("L"), np.float64) / 255
        found = _grey(answer)
        if found.shape != wanted.shape:
            raise ValueError(f"a picture of {wanted.shape} pixels, and the answer has {found.shape}")
        one, other = found >= 0.5, wanted >= 0.5
        union = int((one | other).sum())
        overlaps.append(float((one & other).sum()) / union if union else 1.0)
        differences.append(float(np.abs(found - wanted).mean()))
    samples = {"iou": of_values(overlaps), "mae": of_values(differences)}
    return OutputScores(metrics=_means(samples), samples=samples, quality=overlaps, right=[None] * len(overlaps))


def _tensors(declared: Tensor, answers: Sequence[Any], truth: Sequence[Any]) -> OutputScores:
    off = []
    for answer, expected in zip(answers, truth, strict=True):
        wanted = np.asarray(json.loads(expected) if isinstance(expected, str) else expected, np.float64)
        off.append(float(np.abs(np.asarray(answer, np.float64) - wanted).mean()))
    samples = {"mae": of_values(off)}
    return OutputScores(
        metrics=_means(samples), samples=samples, quality=[-each for each in off], right=[None] * len(off)
    )


_SCORERS: Final[tuple[tuple[Any, Callable[..., OutputScores]], ...]] = (
    (Classes, _classes),
    (Ordinal, _ordinal),
    (Number, _number),
    ((Text, Caption), _text),
    (Labels, _labels),
    (Picture, _pictures),
    (Tensor, _tensors),
)


def _means(samples: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(np.mean(record["values"])) for name, record in samples.items()}


def _grey(value: Any) -> Any:
    if isinstance(value, bytes):
        return np.asarray(open_picture("the answer", value).convert("L"), np.float64) / 255
    found = np.asarray(value)
    found = found / 255 if found.dtype == np.uint8 else found
    return np.asarray(found.mean(axis=2) if found.ndim == 3 else found, np.float64)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def examples_of(
    names: Sequence[str],
    plain: Sequence[Mapping[str, Any]],
    outputs: Mapping[str, Any],
    truth: Mapping[str, Sequence[Any]],
    scores: OutputScores,
) -> dict[str, list[Example]]:
    """Return examples for the report: the first ones, the best and the worst."""
    first = next(iter(truth))

    def example(row: int) -> Example:
        answer = text_output(plain[row][first], outputs[first])
        return Example(
            given=str(names[row])[:200],
            answer=answer[:400],
            expected=(str(truth[first][row])[:400],),
            right=scores.right[row],
        )

    best, worst = extremes(scores.quality)
    return {
        "examples": [example(row) for row in range(min(SHOWN, len(names)))],
        "best": [example(row) for row in best],
        "worst": [example(row) for row in worst],
    }
