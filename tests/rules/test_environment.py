"""docs/environment.md lists every HEADWAY_ variable of the source once, and no other."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields
from pathlib import Path

from headway.core import platform
from headway.rundir.notify import Notification
from headway.supervisor.node import SupervisorSettings
from headway.supervisor.supervisor import _settings
from headway.targets.kubernetes import manifests, reaper

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "environment.md"
NAME = re.compile(r"\bHEADWAY_[A-Z0-9_]*[A-Z0-9]")
ROW = re.compile(r"^\| `([^`]+)` \|(.+)\|$", re.M)
GROUPS = (
    "You set them",
    "Your script or command reads them",
    "Between Headway's processes",
    "Fault injection",
)


def mentioned() -> set[str]:
    """Every name in the source, and those that the notification's fields make."""
    files = (path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".json", ".sh", ".yaml"))
    found = {name for path in files for name in NAME.findall(path.read_text())}
    return found | {f"HEADWAY_{field.name.upper()}" for field in fields(Notification)}


def sections() -> dict[str, dict[str, list[str]]]:
    """The rows of each section: the first column, and the cells of the others."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.M)
    return {
        title: {name: [cell.strip() for cell in rest.split(" | ")] for name, rest in ROW.findall(text)}
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def rows() -> list[str]:
    return [name for name, _ in ROW.findall(PAGE.read_text()) if NAME.fullmatch(name)]


def test_every_variable_of_the_source_has_a_row() -> None:
    assert sorted(mentioned() - set(rows())) == [], f"in src, not in {PAGE}"


def test_every_row_names_a_variable_of_the_source() -> None:
    assert sorted(set(rows()) - mentioned()) == [], f"in {PAGE}, not in src"


def test_a_variable_has_one_row_in_one_of_the_groups_with_all_columns() -> None:
    assert [name for name, count in Counter(rows()).items() if count > 1] == []
    listed = {name: cells for group in GROUPS for name, cells in sections()[group].items() if NAME.fullmatch(name)}
    assert sorted(listed) == sorted(rows())
    assert {name: cells for name, cells in listed.items() if len(cells) != 4 or not all(cells)} == {}


def test_other_pages_and_the_examples_name_only_variables_that_are_listed() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.py")]
    allowed = re.compile(r"HEADWAY_(TEST|KILLS|BENCH|UNLOCKED)\w*")  # of this repository's own tests and scripts
    named = {name for path in pages for name in NAME.findall(path.read_text()) if not allowed.fullmatch(name)}
    assert sorted(named - set(rows())) == []


def test_the_table_of_timing_names_says_the_defaults() -> None:
    cells_of = sections()["Timing"]
    assert list(cells_of) == list(platform._TIMING_NAMES)
    table = {name: float(cells[-1]) for name, cells in cells_of.items() if cells[-1] != "—"}  # others have no default
    kubernetes = {"reaper_poll": reaper.POLL_S, "reaper_wait": reaper.START_WAIT_S, "fuse": manifests.GUARD_TTL_S}
    assert {name: table[name] for name in kubernetes} == kubernetes
    supervised = ",".join(f"{name}={value:g}" for name, value in table.items() if name not in kubernetes)
    assert _settings({"HEADWAY_TIMING": supervised}, {}) == SupervisorSettings()
