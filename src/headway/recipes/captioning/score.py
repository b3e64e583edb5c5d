"""How good the captions are: what the model says by itself, against everything people said of the same picture."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.evaluate import Evaluation, Example
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.data import Batch, PictureFeed, Pictures, load
from headway.recipes.captioning.decode import caption
from headway.recipes.captioning.model import Captioner
from headway.score.captions import score
from headway.spec.model import Data

if TYPE_CHECKING:
    from headway.runtime import Run

SHOWN: Final = 24  # examples of each group in the report
SEEN, HELD_OUT = "seen", "held_out"
REPORTED: Final = ("bleu_4", "cider", "rouge_l")


def validate(run: Run, model: Captioner, cfg: Config, pictures: Pictures) -> dict[str, float]:
    """Scores of what the model says of all pictures, greedily, each rank captioning its share."""
    share = say(model, cfg, len(pictures), run.evaluating(PictureFeed(pictures)), beam=1)
    rows: Tensor = run.total(share.to(run.device))
    return scores(pictures, [model.vocabulary.decode(row) for row in rows.tolist()])


def say(model: Captioner, cfg: Config, count: int, batches: Iterable[Batch], *, beam: int) -> Tensor:
    """What the model says of the pictures in `batches`: a row of words a picture, zero for those of other ranks."""
    said = torch.zeros(count, cfg.max_length, dtype=torch.int64)
    learning = model.training
    model.eval()
    for batch in batches:
        words = caption(model, batch.pictures, max_length=cfg.max_length, beam=beam, length_penalty=cfg.length_penalty)
        said[batch.rows.cpu()] = words.cpu()
    model.train(learning)
    return said


def scores(pictures: Pictures, said: Sequence[str]) -> dict[str, float]:
    """BLEU-4, CIDEr and ROUGE-L against all references; where a grammar can tell, also how many are simply right."""
    measured = score(said, pictures.references)
    found = {name: measured[name] for name in REPORTED}
    if pictures.valid is not None:
        found["exact"] = float(np.mean(_right(pictures, said)))
    return found


def evaluate(model: Captioner, cfg: Config, data: Data, split: str) -> Evaluation:
    """The whole split with beam search; apart, what is made of combinations that training showed and did not show."""
    pictures = load(cfg, data, split)
    feed = PictureFeed(pictures)
    batches = (feed.batch(0, step, 0, 1) for step in range(len(feed)))
    rows = say(model, cfg, len(pictures), batches, beam=cfg.beam)
    said = [model.vocabulary.decode(row) for row in rows.tolist()]
    groups = _groups(pictures)
    by_group = {name: scores(_part(pictures, rows), [said[row] for row in rows]) for name, rows in groups.items()}
    metrics = scores(pictures, said)
    for name, found in by_group.items():
        metrics |= {f"{metric}_{name}": value for metric, value in found.items() if metric in ("bleu_4", "exact")}
    return Evaluation(
        data=pictures.name,
        count=len(pictures),
        metrics=metrics,
        groups=by_group,
        examples=_examples(pictures, said, groups or {"": list(range(len(pictures)))}),
    )


def _groups(pictures: Pictures) -> dict[str, list[int]]:
    """Which pictures have only combinations that training showed; none where that is true of all."""
    if pictures.held_out is None or not pictures.held_out.any():
        return {}
    return {
        HELD_OUT: np.flatnonzero(pictures.held_out).tolist(),
        SEEN: np.flatnonzero(~pictures.held_out).tolist(),
    }


def _part(pictures: Pictures, rows: Sequence[int]) -> Pictures:
    return Pictures(
        name=pictures.name,
        pixels=pictures.pixels[rows],
        references=[pictures.references[row] for row in rows],
        valid=None if pictures.valid is None else [pictures.valid[row] for row in rows],
    )


def _right(pictures: Pictures, said: Sequence[str]) -> NDArray[np.bool_]:
    assert pictures.valid is not None
    return np.array([text in valid for text, valid in zip(said, pictures.valid, strict=True)])


def _examples(pictures: Pictures, said: Sequence[str], groups: dict[str, list[int]]) -> list[Example]:
    right = None if pictures.valid is None else _right(pictures, said)
    return [
        Example(
            picture=_png(pictures.pixels[row]),
            answer=said[row],
            expected=pictures.references[row],
            right=None if right is None else bool(right[row]),
            group=name,
        )
        for name, rows in groups.items()
        for row in rows[:SHOWN]
    ]


def _png(pixels: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    body = io.BytesIO()
    Image.fromarray(pixels).save(body, "PNG", optimize=True)
    return body.getvalue()
