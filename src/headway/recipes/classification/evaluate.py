"""Evaluation of classifiers: accuracy, top-k, per-class and grouped scores, confusion matrices."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.artifacts.evaluate import Baseline, Evaluation, Example, Table, extremes
from headway.core.progress import with_progress
from headway.metrics.classification import ClassificationScores
from headway.metrics.samples import of_values
from headway.recipes.classification.config import Config
from headway.recipes.classification.data import Labelled, check_classes, groups_of, load, picture_at
from headway.recipes.classification.model import Classifier
from headway.spec.model import Cache, Data

if TYPE_CHECKING:
    from headway.training import Run

SHOWN: Final = 24  # examples in the report
_MAX_MATRIX_CLASSES: Final = 60  # classes: a larger matrix is only listed as pairs in report.json


def validate(run: Run, model: Classifier, cfg: Config, read: Labelled) -> dict[str, float]:
    """Score all pictures, each rank its share. Sums over ranks, never means of means."""
    share = probabilities(model, len(read), run.evaluating(read.in_order()))
    rows: Tensor = run.total(share.to(run.device))
    return _scores(cfg, read, rows.cpu().numpy()).metrics()


def probabilities(model: Classifier, count: int, batches: Iterable[Any]) -> Tensor:
    """Return class probabilities per picture in `batches`; zeros for those of other ranks."""
    learning = model.training
    model.eval()
    found = torch.zeros(count, len(model.classes))
    with torch.inference_mode():
        for batch in batches:
            found[batch["row"].cpu()] = model(batch["picture"]).float().softmax(dim=1).cpu()
    model.train(learning)
    return found


def evaluate(model: Classifier, cfg: Config, data: Data, split: str, *, cache: Cache | None = None) -> Evaluation:
    """Evaluate the whole split: metrics, a row per class, and confusion matrices."""
    read = load(cfg, data, split, cache=cache)
    check_classes(model.classes, read)
    feed = read.in_order()
    batches = with_progress((feed.batch(0, step, 0, 1) for step in range(len(feed))), "classifying pictures", len(feed))
    found = probabilities(model, len(read), batches).numpy()
    scores = _scores(cfg, read, found)
    report = scores.report()
    best, worst = extremes(found[np.arange(len(read)), read.labels()].tolist())
    return Evaluation(
        data=read.name,
        count=len(read),
        metrics=scores.metrics() | _without(cfg, read, found),
        examples=_examples(read, found),
        best=[_example(read, found, row) for row in best],
        worst=[_example(read, found, row) for row in worst],
        baseline=_baseline(cfg, read),
        tables=_tables(report),
        samples=_samples(cfg, read, found),
    )


def _scores(cfg: Config, read: Labelled, found: NDArray[Any]) -> ClassificationScores:
    scores = ClassificationScores(read.classes, groups=groups_of(read.classes, cfg.groups), top=(cfg.top,))
    scores.add(read.labels(), probabilities=found)
    return scores


def _without(cfg: Config, read: Labelled, found: NDArray[Any]) -> dict[str, float]:
    """Return the accuracy without the pictures of the classes in `cfg.without`."""
    left_out = [read.classes.index(name) for name in cfg.without if name in read.classes]
    if not left_out:
        return {}
    labels = read.labels()
    kept = ~np.isin(labels, left_out)
    return {"accuracy_without": float((found.argmax(axis=1) == labels)[kept].mean())}


def _samples(cfg: Config, read: Labelled, found: NDArray[Any]) -> dict[str, Any]:
    """Return each picture's contribution to each metric, for confidence intervals and comparisons of runs."""
    labels, predicted = read.labels(), found.argmax(axis=1)
    record = {"accuracy": of_values(predicted == labels)}
    groups = groups_of(read.classes, cfg.groups)
    if groups is not None:
        group = np.array([groups[name] for name in read.classes])
        record["grouped_accuracy"] = of_values(group[predicted] == group[labels])
    return record


def _tables(report: dict[str, Any]) -> list[Table]:
    per_class = report["per_class"]
    tables = [
        Table(
            name="per_class",
            title="Scores per class",
            head=tuple(per_class[0]),
            rows=[list(row.values()) for row in per_class],
        )
    ]
    if "grouped_confusion" in report:
        tables.append(_matrix("grouped_confusion", "Confusion matrix of groups", report["grouped_confusion"]))
    tables.append(_confused(report["confusion"]))
    if len(report["confusion"]["classes"]) <= _MAX_MATRIX_CLASSES:
        tables.append(_matrix("confusion", "Confusion matrix", report["confusion"]))
    return tables


def _matrix(name: str, title: str, confusion: dict[str, Any]) -> Table:
    classes = confusion["classes"]
    rows = [[truth, *counts] for truth, counts in zip(classes, confusion["counts"], strict=True)]
    return Table(name=name, title=title, head=("in truth", *classes), rows=rows, matrix=True)


def _confused(confusion: dict[str, Any]) -> Table:
    """List the class pairs confused most often."""
    counts, classes = np.array(confusion["counts"]), confusion["classes"]
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[:10]
    pairs = [divmod(int(place), len(classes)) for place in order]
    confused = [(truth, guess) for truth, guess in pairs if counts[truth, guess]]
    rows = [[classes[truth], classes[guess], int(counts[truth, guess])] for truth, guess in confused]
    return Table(
        name="confused", title="Most frequent confusions", head=("in truth", "taken for", "how often"), rows=rows
    )


def _baseline(cfg: Config, read: Labelled) -> Baseline:
    """Score a baseline that always predicts the most frequent class."""
    counts = np.bincount(read.labels(), minlength=len(read.classes))
    always = int(counts.argmax())
    probabilities = np.zeros((len(read), len(read.classes)))
    probabilities[:, always] = 1.0
    metrics = _scores(cfg, read, probabilities).metrics() | _without(cfg, read, probabilities)
    return Baseline(words=f"always predicts {read.classes[always]}, the most frequent class", metrics=metrics)


def _examples(read: Labelled, found: NDArray[Any]) -> list[Example]:
    """Pick examples evenly over the split, which is often sorted by class."""
    rows = np.unique(np.linspace(0, len(read) - 1, min(SHOWN, len(read))).astype(int)).tolist()
    return [_example(read, found, row) for row in rows]


def _example(read: Labelled, found: NDArray[Any], row: int) -> Example:
    truth = int(read.labels()[row])
    return Example(
        picture=_png(picture_at(read, row)),
        answer=f"{read.classes[int(found[row].argmax())]} ({100 * float(found[row].max()):.0f} %)",
        expected=(read.classes[truth],),
        right=bool(found[row].argmax() == truth),
        note=f"{100 * float(found[row, truth]):.1f} % for the truth",
    )


def _png(pixels: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    body = io.BytesIO()
    Image.fromarray(pixels).save(body, "PNG", optimize=True)
    return body.getvalue()
