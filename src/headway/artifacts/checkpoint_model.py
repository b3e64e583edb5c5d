"""Rebuild a recipe's model from a checkpoint of a run, for `eval` and `export`. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.artifacts.evaluate import program_has_no_model
from headway.core.errors import BadInput, NoCheckpoint, NotThere
from headway.plugins import RECIPES, Recipe
from headway.plugins.registry import is_path, unknown_path
from headway.rundir.history import scores_at
from headway.rundir.layout import RunFolder
from headway.spec import Job, undump
from headway.spec.loading import from_plain
from headway.storage import open_store
from headway.training.checkpoint.reader import CheckpointReader
from headway.training.checkpoint.serialization import CheckpointDamaged, read_record

if TYPE_CHECKING:
    from torch import nn

    from headway.bundle.format import BundleParts
    from headway.storage.base import Store
    from headway.training.checkpoint.index import CheckpointEntry


BEST, LAST = "best", "last"


@dataclass(frozen=True, kw_only=True)
class CheckpointModel:
    recipe: Recipe
    job: Job
    config: Any
    model: nn.Module
    checkpoint: str  # the name by which it was found
    step: int
    scores: Mapping[str, float]  # the run's own validation of these weights, if there was one
    environment: Mapping[str, Any]  # versions, threads and device of the training

    def bundle(self) -> BundleParts:
        """Make the bundle for export."""
        made: BundleParts = self.recipe.load("bundle")(self.model, self.config, self.job, self.scores)
        return made


def open_trained(run_url: str, checkpoint: str = BEST) -> CheckpointModel:
    """Open the model of a run by a checkpoint's name or step. `best` means the newest one if none was scored."""
    store = open_store(run_url)
    folder = RunFolder(store)
    plan = folder.plan()
    job = undump(plan.job, where=run_url)
    recipe = recipe_of(job, folder.name)
    config = from_plain(job.config, recipe.load_config(), where=run_url)
    step, source = named_step(store, checkpoint)
    try:
        loaded = CheckpointReader(store).load(step)
    except CheckpointDamaged as problem:
        raise NoCheckpoint(
            f"the checkpoint of step {step} cannot be used: {problem}",
            where=run_url,
            fix="choose another one: --checkpoint NAME",
        ) from None
    return CheckpointModel(
        recipe=recipe,
        job=job,
        config=config,
        model=_rebuild_model(recipe, config, _weights(loaded.state), by=plan.headway, where=f"{run_url}, step {step}"),
        checkpoint=source,
        step=step,
        scores=scores_at(folder, step),
        environment=loaded.environment,
    )


def _rebuild_model(recipe: Recipe, config: Any, weights: Mapping[str, Any], *, by: str, where: str) -> nn.Module:
    """Rebuild the model with these weights. Raises NoCheckpoint if the model has changed since it was trained."""
    try:
        model: nn.Module = recipe.load("rebuild")(config, weights)
    except (RuntimeError, KeyError) as error:
        lines = str(error).strip().splitlines()
        raise NoCheckpoint(
            f"its weights do not match the current {recipe.name} recipe: {lines[min(1, len(lines) - 1)].strip()}",
            where=where,
            fix=f"use the version of Headway that trained it ({by}), or train again",
        ) from None
    return model


def _weights(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's state, averaged if the run keeps an average: that is what it scores and exports."""
    averaged = state.get("average_1", {}).get("weights", {})
    return {**state["model"], **averaged}


def recipe_of(job: Job, run: str = "RUN") -> Recipe:
    if job.recipe is None:
        raise program_has_no_model(run)
    if job.recipe not in RECIPES:
        if is_path(job.recipe):
            raise unknown_path(job.recipe)
        raise BadInput(
            f"this version of Headway has no recipe {job.recipe!r}", fix=f"choose one of {', '.join(RECIPES)}"
        )
    return RECIPES[job.recipe]


def _best_of_phases_name(kept: Sequence[CheckpointEntry]) -> tuple[int, str] | None:
    """Return the newest phase's best checkpoint. A run in phases has one best per phase."""
    found = [(entry.step, name) for entry in kept for name in entry.names if name.endswith(f"_{BEST}")]
    return max(found, default=None)


def named_step(store: Store, checkpoint: str) -> tuple[int, str]:
    """Resolve a checkpoint's name to its step and the name it was found under."""
    kept = CheckpointReader(store).list_commits()
    if not kept:
        raise NoCheckpoint("this run has no checkpoint yet", where=store.url, fix="headway resume RUN")
    steps = [one.step for one in kept]
    if checkpoint == LAST:
        return steps[-1], LAST
    try:
        return int(read_record(store, f"checkpoints/{checkpoint}.json")["step"]), checkpoint
    except NotThere:
        pass
    except (CheckpointDamaged, KeyError, TypeError, ValueError):
        raise NoCheckpoint(
            f"checkpoints/{checkpoint}.json is damaged", where=store.url, fix="give a step instead: --checkpoint STEP"
        ) from None
    if checkpoint == BEST:
        return _best_of_phases_name(kept) or (steps[-1], LAST)
    if checkpoint.isdigit() and int(checkpoint) in steps:
        return int(checkpoint), checkpoint
    names = sorted({name for one in kept for name in one.names} | {LAST})
    raise BadInput(
        f"this run has no checkpoint {checkpoint!r}",
        where=store.url,
        fix=f"choose one of {', '.join([*names, *map(str, steps)])}",
    )
