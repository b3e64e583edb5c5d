"""`headway predict`: apply a bundle's model, or that of a run that has exported one, to your inputs. Needs torch."""

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
    """Return one answer per input, in order, each with at least `input` and `text`."""
    _, answer = open_predictor(ref)
    return answer(list(inputs))


def open_predictor(ref: str) -> tuple[Recipe, Answer]:
    """Open a bundle, or a run's bundle; return its recipe and a reusable prediction function."""
    bundle = Bundle.open(bundle_of(ref))
    recipe = require_recipe(bundle.recipe, where=bundle.url)
    answer: Answer = recipe.load("predictor")(bundle)
    return recipe, answer


def bundle_of(ref: str) -> str:
    """Return the URL of a bundle: `ref` itself, or the one in a run's folder."""
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
    raise BadBundle(f"{ref} is neither a bundle nor a run", fix="give a run, or a folder written by headway export")


def _has(url: str, key: str) -> bool:
    try:
        open_store(url).stat(key)
    except NotThere:
        return False
    return True
