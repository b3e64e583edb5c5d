"""Plug-ins of installed packages: found by name, imported on use, and each broken one named with its fix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.packages import install

RECIPE = """\
from headway.plugins import Recipe

RECIPE = Recipe(
    name="line", summary="fit a line", config="good_headway.config:Config", train="good_headway.line:train",
    rebuild="x:y", bundle="x:y", evaluate="x:y", predictor="x:y", data_default="",
)
"""
CONFIG = """\
from dataclasses import dataclass
from typing import Annotated

@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    epochs: Annotated[int, ">= 1"] = 3  # passes over the data
"""
TARGET = """\
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from headway.targets.local import target as local


@dataclass(frozen=True, kw_only=True, slots=True)
class Options(local.Options):
    niceness: Annotated[int, ">= 0"] = 10


@dataclass(frozen=True)
class Desk(local.LocalTarget):
    options: Options = Options()
    options_class: ClassVar[type[Any]] = Options
    summary: ClassVar[str] = "the desk"
    kind: ClassVar[str] = "desk"
"""
TRACKER = "class Lines:\n    pass\n"
PROVIDER = """\
from headway.core.types import MachineProvider, RentalCommands

class Garage(MachineProvider):
    def commands(self, machine):
        return RentalCommands(up=f"rent {machine['type']} {{run}}", down="return {id}", list="list {run}", price=0.5)
"""
JOB = "name: job\nscript: train.py\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One package whose plug-ins work, and one whose plug-ins are broken, each in another way."""
    folder = tmp_path_factory.mktemp("site")
    good = {"recipe": RECIPE, "config": CONFIG, "target": TARGET, "tracker": TRACKER, "provider": PROVIDER}
    install(
        folder,
        "headway-good",
        {"good_headway.__init__": "", **{f"good_headway.{name}": text for name, text in good.items()}},
        {
            "recipes": {"line": "good_headway.recipe:RECIPE", "grading": "good_headway.recipe:RECIPE"},
            "targets": {"desk": "good_headway.target:Desk"},
            "trackers": {"lines": "good_headway.tracker:Lines"},
            "providers": {"garage": "good_headway.provider:Garage"},
        },
    )
    install(
        folder,
        "headway-bad",
        {"bad_headway.__init__": "", "bad_headway.raises": "1 / 0\n", "bad_headway.wrong": "class Thing:\n    pass\n"},
        {
            "targets": {"raising": "bad_headway.raises:X", "wrong": "bad_headway.wrong:Thing"},
            "recipes": {"gone": "no_such_module:RECIPE", "nameless": "bad_headway.wrong:Nothing"},
            "stores": {"bad": "bad_headway.raises:Store"},
        },
    )
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "headway.yaml").write_text(JOB)
    return tmp_path


class Ran:
    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.text = done.returncode, done.stdout + done.stderr
        self.out = done.stdout


def headway(project: Path, *words: str, site: Path | None = None, python: str = "") -> Ran:
    paths = os.pathsep.join(map(str, filter(None, [site])))
    env = {**os.environ, "PYTHONPATH": paths, "HEADWAY_HOME": str(project / "home")}
    command = [sys.executable, "-c", python] if python else [sys.executable, "-m", "headway", *words]
    return Ran(subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, timeout=120, check=False))


def test_plugins_lists_what_is_installed_from_where_and_what_fails(project: Path, site: Path) -> None:
    listed = headway(project, "plugins", "--json", site=site)
    assert listed.code == 2
    rows: dict[tuple[str, str, str], Any] = {
        (row["group"], row["name"], row["distribution"]): row["problem"] for row in json.loads(listed.out)
    }
    assert rows["targets", "local", "headway"] == ""
    assert rows["targets", "desk", "headway-good 0.1"] == rows["recipes", "line", "headway-good 0.1"] == ""
    assert rows["providers", "garage", "headway-good 0.1"] == rows["trackers", "lines", "headway-good 0.1"] == ""
    assert "ZeroDivisionError" in rows["targets", "raising", "headway-bad 0.1"]
    assert "derived from headway.core.types.Target" in rows["targets", "wrong", "headway-bad 0.1"]
    assert "the module no_such_module is not installed" in rows["recipes", "gone", "headway-bad 0.1"]
    assert "Nothing" in rows["recipes", "nameless", "headway-bad 0.1"]
    assert "Headway has a recipe of that name" in rows["recipes", "grading", "headway-good 0.1"]
    table = headway(project, "plugins", site=site)
    assert "headway-bad 0.1" in table.text
    assert "BAD" in table.text


@pytest.mark.parametrize("words", [["plan"], ["ps"], ["init", "--to", "new"], ["gc", "--dry-run"], ["--help"]])
def test_broken_plugins_harm_no_verb_that_does_not_use_them(project: Path, site: Path, words: list[str]) -> None:
    ran = headway(project, *words, site=site)
    assert ran.code == 0, ran.text
    assert "Traceback" not in ran.text
    if words[0] == "gc":  # what a broken target has rented is not known
        assert "raising could not be searched" in ran.text


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("targets: {x: {kind: raising}}", "raising of headway-bad 0.1 cannot be loaded: ZeroDivisionError"),
        ("targets: {x: {kind: wrong}}", "it must be a class derived from headway.core.types.Target"),
        ("targets: {x: {kind: desk, niceness: -1}}", "targets.x.niceness must be at least 0"),
        ("targets: {x: {kind: desj}}", "did you mean desk?"),
        ("targets: {x: {kind: ssh, provider: garag}}", "did you mean garage?"),
        ("targets: {x: {kind: ssh, provider: garage, machine: {type: big}, up: mine}}", "remove up"),
        ("outputs: bad://bucket/runs", "bad of headway-bad 0.1 cannot be loaded"),
        ("outputs: oss://bucket/runs", "AWS_ENDPOINT_URL"),
        ("outputs: zzz://bucket/runs", "must be a folder, or a gs://"),
        ("log_to: [line]", "did you mean lines?"),
        ("log_to: [comet]", "pip install comet-ml"),
        ("log_to: [mypkg.comet:Comet]", "there is no mypkg in"),
        ("log_to: ['no.where:']", "must be"),
        ("targets: {x: {kind: 'nowhere.target:Target'}}", "the module nowhere is neither in"),
    ],
)
def test_a_job_file_is_checked_against_what_is_installed(project: Path, site: Path, job: str, said: str) -> None:
    (project / "headway.yaml").write_text(f"{JOB}{job}\n")
    on = ["--on", "x"] if job.startswith("targets") else []
    ran = headway(project, "plan", *on, site=site)
    assert ran.code == 2, ran.text
    assert said in ran.text
    assert "Traceback" not in ran.text


@pytest.mark.parametrize(("recipe", "said"), [("lin", "did you mean line?"), ("gone", "headway-bad 0.1")])
def test_a_recipe_is_checked_too(project: Path, site: Path, recipe: str, said: str) -> None:
    (project / "headway.yaml").write_text(f"name: job\nrecipe: {recipe}\n")
    ran = headway(project, "plan", site=site)
    assert ran.code == 2, ran.text
    assert said in ran.text


def test_a_plan_says_which_packages_it_uses_and_what_the_place_lacks(project: Path, site: Path) -> None:
    (project / "headway.yaml").write_text("name: job\nrecipe: line\nlog_to: [lines]\n")
    here = headway(project, "plan", "--json", site=site)
    assert here.code == 0, here.text
    plan = json.loads(here.out)
    assert plan["plugins"] == {"recipes": {"line": "headway-good 0.1"}, "trackers": {"lines": "headway-good 0.1"}}
    there = headway(project, "plan", "--on", "ssh", site=site)
    assert there.code == 2
    assert "would be missing where it trains" in there.text
    assert "echo headway-good==0.1 >> requirements.txt" in there.text
    (project / "requirements.txt").write_text("headway_good==0.1\n")
    (project / "headway.yaml").write_text(
        "name: job\nrecipe: line\nlog_to: [lines]\nrequirements: requirements.txt\n"
        "targets: {gpu: {kind: ssh, host: a}}\n"
    )
    there = headway(project, "plan", "--on", "gpu", site=site)
    assert "would be missing" not in there.text
    assert "the recipe line is from headway-good 0.1: installed there by requirements.txt" in there.text


def test_a_plan_of_headways_own_parts_records_no_plugins(project: Path) -> None:
    assert "plugins" not in json.loads(headway(project, "plan", "--json").out)


def test_a_provider_becomes_the_commands_of_the_target(project: Path, site: Path) -> None:
    (project / "headway.yaml").write_text(
        f"{JOB}targets: {{gpu: {{kind: ssh, provider: garage, machine: {{type: big}}}}}}\n"
    )
    ran = headway(project, "plan", "--on", "gpu", "--json", site=site)
    assert ran.code == 0, ran.text
    options = json.loads(ran.out)["options"]
    assert (options["up"], options["down"], options["price"]) == ("rent big {run}", "return {id}", 0.5)


def test_two_packages_with_one_name_are_refused_by_both_names(project: Path, site: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    install(other, "headway-other", {"other_headway": RECIPE}, {"recipes": {"line": "other_headway:RECIPE"}})
    (project / "headway.yaml").write_text("name: job\nrecipe: line\n")
    ran = headway(project, "plan", site=Path(f"{site}{os.pathsep}{other}"))
    assert ran.code == 2
    assert "2 packages have a recipe named line" in ran.text
    assert "headway-other 0.1" in ran.text
    assert "headway-good 0.1" in ran.text


@pytest.mark.parametrize("words", [["--help"], ["plan"]])
def test_what_ships_with_headway_is_found_without_looking_at_packages(project: Path, words: list[str]) -> None:
    code = f"""import sys
from headway.cli import main
assert main({words!r}) == 0
from headway.plugins.registry import entry_points
sys.exit(entry_points.cache_info().misses)"""
    (project / "headway.yaml").write_text("name: job\nrecipe: grading\nlog_to: [tensorboard]\noutputs: runs\n")
    ran = headway(project, python=code)
    assert ran.code == 0, ran.text


def test_an_installed_plugin_is_in_the_schema_that_plugins_prints(project: Path, site: Path) -> None:
    printed = json.loads(headway(project, "plugins", "--schema", site=site).out)
    assert {"const": "desk"}.items() <= printed["$defs"]["desk-target"]["properties"]["kind"].items()
    assert "lines" in json.dumps(printed["properties"]["log_to"])
    assert "line" in json.dumps(printed["properties"]["recipe"])


def test_the_facts_of_a_target_are_the_same_in_its_class_and_in_the_table() -> None:
    from headway.plugins.targets import TARGETS, _target

    for name, entry in TARGETS.built_in.items():
        made = _target(name, entry.target, entry.load_target)
        facts = ("has_pods", "on_this_machine", "own_python", "list_price_factor", "scheduler_env", "shared_workdir")
        assert {fact: getattr(made, fact) for fact in facts} == {fact: getattr(entry, fact) for fact in facts}, name
        assert made.load_options() is entry.load_options()
