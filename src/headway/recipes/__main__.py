"""Entry point of a rank whose job names a recipe: `python -m headway.recipes.__main__`, started by the supervisor."""

from __future__ import annotations

import os
import sys

from headway.core.errors import BadInput, HeadwayError
from headway.plugins import RECIPES, Recipe
from headway.plugins.registry import declare, is_path
from headway.spec import Job


def main() -> int:
    """Train the job's recipe. Exit code: 0 finished, 143 stopped after a checkpoint, anything else failed."""
    import headway
    from headway.artifacts.checkpoint_model import recipe_of
    from headway.spec.loading import from_plain

    if "HEADWAY_RUN_URL" not in os.environ:
        raise BadInput("this is started by Headway itself, inside a run", fix="headway run -f headway.yaml")
    run = headway.start()
    if is_path(run.job.recipe or ""):  # this is the project's own process: its code runs here anyway
        declare(str(run.job.recipe), os.environ.get("HEADWAY_CODE_DIR") or os.getcwd())
    recipe = recipe_of(run.job)
    refuse_phases(run.job, recipe)
    config = from_plain(run.config, recipe.load_config(), where="config")
    recipe.load("train")(run, config)
    return 0


def refuse_phases(job: Job, recipe: Recipe) -> None:
    """Raise BadInput if the job has `phases` but the recipe ignores them: the settings would silently do nothing."""
    if job.phases and not recipe.phases:
        able = ", ".join(sorted(name for name, other in RECIPES.working() if other.phases))
        raise BadInput(f"the recipe {recipe.name} does not train in phases", fix=f"remove `phases`: {able} reads them")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HeadwayError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
