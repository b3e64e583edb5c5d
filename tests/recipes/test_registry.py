"""The registry of recipes: sorted, complete, and free of anything heavy."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, is_dataclass

import pytest

from headway.core.errors import BadInput
from headway.plugins import RECIPES
from headway.recipes.__main__ import refuse_phases
from headway.spec import Job, Phase
from headway.spec.schema import field_comments


def test_recipes_are_sorted_and_know_their_names() -> None:
    assert list(RECIPES) == sorted(RECIPES)
    assert all(recipe.name == name for name, recipe in RECIPES.items())


@pytest.mark.parametrize("name", list(RECIPES))
def test_a_config_is_frozen_has_defaults_and_explains_every_field(name: str) -> None:
    config = RECIPES[name].load_config()
    assert is_dataclass(config)
    made = config()
    with pytest.raises(AttributeError):
        setattr(made, fields(config)[0].name, 7)
    comments = field_comments(config)
    assert not [field.name for field in fields(config) if not comments.get(field.name)]


@pytest.mark.torch
@pytest.mark.parametrize("name", list(RECIPES))
@pytest.mark.parametrize("part", ["train", "rebuild", "bundle", "evaluate", "predictor"])
def test_what_a_recipe_names_exists(name: str, part: str) -> None:
    assert callable(RECIPES[name].load(part))


def test_reading_all_configs_imports_nothing_heavy() -> None:
    program = (
        "import sys; from headway.plugins import RECIPES;"
        "[recipe.load_config()() for recipe in RECIPES.values()];"
        "sys.exit(' '.join({'torch', 'numpy', 'PIL', 'safetensors'} & set(sys.modules)) or 0)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr.strip()) == (0, "")


def test_phases_are_refused_by_recipes_that_would_not_read_them() -> None:
    phases = (Phase(name="first", epochs=1),)
    refuse_phases(Job(name="cards", recipe="grading", phases=phases), RECIPES["grading"])
    refuse_phases(Job(name="leaves", recipe="classification"), RECIPES["classification"])
    with pytest.raises(BadInput, match="classification does not train in phases"):
        refuse_phases(Job(name="leaves", recipe="classification", phases=phases), RECIPES["classification"])
