"""`headway predict`: what a model says to inputs of your own. Takes a bundle, or a run that has one. Needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.bundle import RECORD, Bundle
from headway.errors import BadBundle, BadInput, NotThere
from headway.recipes.registry import RECIPES
from headway.runfolder import PLAN
from headway.storage import join, open_store


def predict(ref: str, inputs: Sequence[str]) -> list[dict[str, Any]]:
    """One answer an input, in order, each with at least `input` and `text`."""
    bundle = Bundle.open(bundle_of(ref))
    if bundle.recipe not in RECIPES:
        raise BadBundle(
            f"it is of the recipe {bundle.recipe!r}, which this Headway does not have",
            where=bundle.url,
            fix="use the Headway that exported it, or a newer one",
        )
    answers: list[dict[str, Any]] = RECIPES[bundle.recipe].load("predictor")(bundle)(list(inputs))
    return answers


def bundle_of(ref: str) -> str:
    """A bundle's own URL, or that of the one in a run's folder."""
    if _has(ref, RECORD):
        return ref
    inside = join(ref, "export")
    if _has(inside, RECORD):
        return inside
    if _has(ref, PLAN):
        raise BadInput(
            f"the run {ref.rstrip('/').rsplit('/', 1)[-1]} has exported no bundle yet",
            fix="wait until it has finished, or export its best checkpoint: headway export RUN",
        )
    raise BadBundle(f"{ref} is neither a bundle nor a run", fix="name a folder that `headway export` wrote, or a run")


def _has(url: str, key: str) -> bool:
    try:
        open_store(url).stat(key)
    except NotThere:
        return False
    return True
