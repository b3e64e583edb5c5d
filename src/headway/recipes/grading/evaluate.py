"""Evaluation of graders: QWK first, because it weighs a miss by its distance, then MAE, accuracy and calibration."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.artifacts.evaluate import Baseline, Evaluation, Example, Table, extremes
from headway.core.errors import BadInput
from headway.core.progress import with_progress
from headway.metrics.ordinal import OrdinalScores
from headway.metrics.samples import of_grades, of_values
from headway.recipes.grading.config import Config
from headway.recipes.grading.data import Batch, Graded, load, prepared
from headway.recipes.grading.model import Grader
from headway.spec.model import Cache, Data

if TYPE_CHECKING:
    from headway.training import Run

SHOWN: Final = 24  # examples in the report


def validate(run: Run, model: Grader, cfg: Config, graded: Graded) -> dict[str, float]:
    """Score all items, each rank its share. An undefined QWK counts as 0, which means no skill."""
    share = predict_grades(model, cfg, len(graded), run.evaluating(graded.feed(cfg, training=False, seed=0)))
    chances: Tensor = run.total(share.to(run.device)).cpu()
    metrics = scores(model, graded, chances).metrics()
    return {name: 0.0 if value is None else value for name, value in metrics.items()}


@torch.no_grad()
def predict_grades(model: Grader, cfg: Config, count: int, batches: Iterable[Batch]) -> Tensor:
    """Return grade probabilities per item in `batches`; zeros for those of other ranks."""
    found = torch.zeros(count, len(model.grades))
    learning = model.training
    model.eval()
    for batch in batches:
        answer = model(*prepared(batch, cfg, None))
        found[batch["row"].cpu()] = model.probabilities(answer).float().cpu()
    model.train(learning)
    return found


def scores(model: Grader, graded: Graded, chances: Tensor) -> OrdinalScores:
    grades = [int(grade) for grade in model.grades]
    unknown = sorted(set(graded.labels().tolist()) - set(grades))
    if unknown:
        raise BadInput(
            f"{graded.name} has the grade {unknown[0]}, but the model was trained on {grades[0]} to {grades[-1]}",
            fix="evaluate it on data with the grades that it was trained on",
        )
    counted = OrdinalScores(grades)
    named = model.named(chances.to(model.grades.device)).cpu().numpy()
    counted.add(graded.labels(), named, _normalise(chances))
    return counted


def _normalise(chances: Tensor) -> NDArray[np.float64]:
    """Renormalise rows to sum to one in double precision."""
    rows = chances.double().clamp_min(0).numpy()
    proper: NDArray[np.float64] = rows / rows.sum(axis=1, keepdims=True)
    return proper


def evaluate(model: Grader, cfg: Config, data: Data, split: str, *, cache: Cache | None = None) -> Evaluation:
    """Evaluate the whole split, with a row per grade, the confusion matrix and the calibration."""
    graded = load(cfg, data, split, cache=cache)
    feed = graded.feed(cfg, training=False, seed=0)
    batches = with_progress((feed.batch(0, step, 0, 1) for step in range(len(feed))), "grading", len(feed))
    chances = predict_grades(model, cfg, len(graded), batches)
    counted = scores(model, graded, chances)
    named = model.named(chances).numpy()
    metrics = {name: value for name, value in counted.metrics().items() if value is not None}
    best, worst = extremes(_sample_quality(model, graded, named, chances))
    return Evaluation(
        data=graded.name,
        count=len(graded),
        metrics=metrics,
        examples=[_example(graded, named, chances, row) for row in range(min(SHOWN, len(graded)))],
        best=[_example(graded, named, chances, row) for row in best],
        worst=[_example(graded, named, chances, row) for row in worst],
        baseline=_baseline(model, graded),
        tables=_tables(counted.report()),
        samples=_samples(graded.labels(), named, [int(grade) for grade in model.grades]),
    )


def _tables(report: Mapping[str, Any]) -> list[Table]:
    grades, counts = report["confusion"]["grades"], report["confusion"]["counts"]
    rows = [[f"grade {grade}", *line] for grade, line in zip(grades, counts, strict=True)]
    return [
        _table("per_grade", "Scores per grade", report["per_grade"]),
        Table(name="confusion", title="Confusion matrix", head=("", *map(str, grades)), rows=rows, matrix=True),
        _table("calibration", "Calibration", report["calibration"]),
    ]


def _table(name: str, title: str, records: Sequence[Mapping[str, Any]]) -> Table:
    return Table(name=name, title=title, head=tuple(records[0]), rows=[list(record.values()) for record in records])


def _samples(labels: NDArray[np.int64], named: NDArray[np.int64], grades: list[int]) -> dict[str, Any]:
    """Return each item's contribution to each metric, for confidence intervals and comparisons of runs."""
    off = np.abs(labels - named)
    return {
        "qwk": of_grades(labels - grades[0], named - grades[0], len(grades)),
        "mae": of_values(off),
        "accuracy": of_values(off == 0),
        "within_one": of_values(off <= 1),
    }


def _sample_quality(model: Grader, graded: Graded, named: NDArray[np.int64], chances: Tensor) -> list[float]:
    """Rank answers by error; ties by the probability of the true grade."""
    labels = graded.labels()
    place = {int(grade): at for at, grade in enumerate(model.grades)}
    sure = _normalise(chances)[np.arange(len(graded)), [place[int(label)] for label in labels]]
    found: list[float] = (sure - np.abs(labels - named)).tolist()
    return found


def _baseline(model: Grader, graded: Graded) -> Baseline:
    """Score a baseline that always predicts the median grade, which minimises the absolute error."""
    grades = [int(grade) for grade in model.grades]
    middle = int(np.sort(graded.labels())[len(graded) // 2])
    probabilities = np.zeros((len(graded), len(grades)))
    probabilities[:, grades.index(middle)] = 1.0
    counted = OrdinalScores(grades)
    counted.add(graded.labels(), np.full(len(graded), middle), probabilities)
    metrics = {name: 0.0 if value is None else value for name, value in counted.metrics().items()}
    return Baseline(words=f"always predicts grade {middle}, the median", metrics=metrics)


def _example(graded: Graded, named: NDArray[np.int64], chances: Tensor, row: int) -> Example:
    label = graded.labels()[row]
    return Example(
        picture=_png(graded.pictures(row)),
        answer=f"grade {named[row]} ({100 * float(chances[row].max()):.0f} % on its likeliest)",
        expected=(f"grade {label}",),
        right=bool(label == named[row]),
        note="" if label == named[row] else f"{abs(int(label) - int(named[row]))} off",
    )


def _png(views: list[NDArray[np.uint8]]) -> bytes:
    """Encode the views side by side as PNG."""
    from PIL import Image

    height = min(128, *(view.shape[0] for view in views), 128)
    small = [Image.fromarray(view) for view in views]
    small = [view.resize((max(1, view.width * height // view.height), height)) for view in small]
    sheet = Image.new("RGB", (sum(view.width for view in small), height))
    at = 0
    for view in small:
        sheet.paste(view, (at, 0))
        at += view.width
    body = io.BytesIO()
    sheet.save(body, "PNG", optimize=True)
    return body.getvalue()
