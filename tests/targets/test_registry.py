"""Targets are named in one table, loaded on use, and say what to install."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from headway import targets
from headway.core.errors import BadInput, BadPlan, MissingExtra
from headway.core.types import Target
from headway.plugins import TARGETS, TargetPlugin
from headway.spec import Job, TargetEntry
from headway.targets.local.target import LocalTarget

JOB = Job(name="job", script="x.py", targets={"desk": TargetEntry(kind="local", options={"python": "python3"})})


def test_the_table_is_sorted_and_every_entry_loads() -> None:
    assert list(TARGETS) == sorted(TARGETS)
    for name, entry in TARGETS.items():
        options = entry.load_options()()
        assert targets.build(name, {}) == entry.load_target()(options)
        assert entry.summary
        assert type(options).__dataclass_params__.frozen


def test_a_jobs_own_entry_comes_before_the_kind_of_that_name() -> None:
    desk, plain = targets.make(JOB, "desk"), targets.make(JOB, "local")
    assert isinstance(desk, LocalTarget)
    assert isinstance(plain, LocalTarget)
    assert (desk.options.python, plain.options.python) == ("python3", None)


def test_an_unknown_target_is_answered_with_the_nearest() -> None:
    with pytest.raises(BadInput, match="did you mean 'local'"):
        targets.make(JOB, "locla")
    with pytest.raises(BadInput, match="one of: desk, docker, kubernetes, local"):
        targets.make(JOB, "zzz")


def test_options_edited_by_hand_into_a_plan_are_checked() -> None:
    with pytest.raises(BadPlan, match="pyhton"):
        targets.build("local", {"pyhton": "x"})


def test_a_target_whose_extra_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    needy = TargetPlugin("no_such_package:X", options="no_such_package:Y", extra="train", summary="")
    monkeypatch.setitem(TARGETS, "needy", needy)
    with pytest.raises(MissingExtra, match="pip install"):
        targets.build("needy", {})


def test_our_own_broken_import_is_not_taken_for_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = TargetPlugin("headway.targets.no_such:X", options="headway.targets.no_such:Y", extra="train", summary="")
    with pytest.raises(ModuleNotFoundError):
        entry.load_target()


def test_reading_the_table_loads_no_target() -> None:
    code = "import sys, headway.targets; print('headway.targets.local.target' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("kind", sorted(TARGETS))
def test_a_target_has_no_method_that_others_would_have_to_look_for(kind: str) -> None:
    target = TARGETS[kind].load_target()
    assert issubclass(target, Target)
    fields = {field.name for field in dataclasses.fields(target)}
    public = {name for name, value in vars(target).items() if callable(value) and not name.startswith("_")} - fields
    # Rehearsals run on docker where torch is missing here, and call its `verb`: no other target needs it.
    assert public - set(dir(Target)) <= {"verb"}
