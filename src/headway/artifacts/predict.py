"""`headway predict`: what a model says to inputs of your own. Takes a bundle, or a run that has one. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headway.bundle.format import RECORD, Bundle
from headway.core.errors import BadBundle, BadInput, NotThere
from headway.plugins import Recipe, require_recipe
from headway.rundir.layout import PLAN
from headway.storage import join, open_store

Answer = Callable[[Sequence[str]], list[dict[str, Any]]]


def predict(ref: str, inputs: Sequence[str]) -> list[dict[str, Any]]:
    """One answer an input, in order, each with at least `input` and `text`."""
    _, answer = open_predictor(ref)
    return answer(list(inputs))


def open_predictor(ref: str) -> tuple[Recipe, Answer]:
    """The recipe of a bundle, or of a run that has one, and its model, ready to be asked again and again."""
    bundle = Bundle.open(bundle_of(ref))
    recipe = require_recipe(bundle.recipe, where=bundle.url)
    answer: Answer = recipe.load("predictor")(bundle)
    return recipe, answer


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
