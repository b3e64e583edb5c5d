"""The promises of a recipe: a recipe's tests inherit `RecipeContract` and name a job that trains in seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from headway.plugins import RECIPES, Recipe
from headway.spec import Job
from headway.spec.schema import field_comments

HEAVY = ("torch", "numpy", "PIL", "safetensors")


class RecipeContract(ABC):
    """Subclasses give `name`, as in the job file's `recipe`, `config` and `inputs`."""

    name: str

    @abstractmethod
    def config(self) -> Mapping[str, Any]:
        """Return settings with which it trains in seconds, for more than one epoch."""

    @abstractmethod
    def inputs(self) -> Sequence[str]:
        """Return inputs for `headway predict`: texts, or names of files that exist."""

    @pytest.fixture
    def recipe(self) -> Recipe:
        return RECIPES[self.name]

    @pytest.fixture
    def project(self, tmp_path: Path) -> Path:
        (tmp_path / "headway.yaml").write_text(
            json.dumps({"name": "job", "recipe": self.name, "config": self.config(), "outputs": "runs"})
        )
        return tmp_path

    def headway(self, project: Path, *words: str) -> str:
        """Run a verb in the project; return what it printed."""
        env = {**os.environ, "HEADWAY_HOME": str(project / "home")}
        command = [sys.executable, "-m", "headway", *words]
        done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def test_it_knows_its_name_and_says_what_it_is_for(self, recipe: Recipe) -> None:
        assert recipe.name == self.name
        assert recipe.summary
        assert "\n" not in recipe.summary

    def test_its_settings_have_defaults_and_each_is_explained(self, recipe: Recipe) -> None:
        config = recipe.load_config()
        assert is_dataclass(config)
        made = config()
        with pytest.raises(AttributeError):
            setattr(made, fields(made)[0].name, None)
        comments = field_comments(config)
        assert [each.name for each in fields(config) if not comments.get(each.name)] == []

    def test_reading_its_settings_imports_nothing_heavy(self, recipe: Recipe) -> None:
        names = f"' '.join(sorted({set(HEAVY)!r} & set(sys.modules)))"
        load = f"from headway.plugins import RECIPES; RECIPES[{self.name!r}].load_config()()"
        code = f"import sys; {load}; print({names})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == ""

    @pytest.mark.parametrize("part", ["train", "rebuild", "bundle", "evaluate", "predictor"])
    def test_everything_that_it_names_exists(self, recipe: Recipe, part: str) -> None:
        assert callable(recipe.load(part))

    def test_its_template_is_a_job_of_this_recipe(self, recipe: Recipe) -> None:
        template = recipe.template()
        assert template is not None, "write template.yaml beside the module of its settings"
        assert Job.load(template).recipe == self.name

    def test_a_run_is_trained_evaluated_exported_and_asked(self, project: Path) -> None:
        self.headway(project, "run", "--yes", "--name", "first")
        assert json.loads(self.headway(project, "status", "first", "--json"))["state"] == "finished"
        report = json.loads(self.headway(project, "eval", "first", "--json"))
        assert report["metrics"]
        assert report["count"] > 0
        self.headway(project, "export", "first", "--to", str(project / "model"))
        answers = json.loads(self.headway(project, "predict", str(project / "model"), *self.inputs(), "--json"))
        assert [each["input"] for each in answers] == list(self.inputs())
        assert all(each["text"] for each in answers)

    def test_a_killed_and_resumed_run_ends_with_the_same_weights(self, project: Path) -> None:
        self.headway(project, "verify-resume", "-f", "headway.yaml")
