"""What other people's scripts rely on: changed on purpose, or not at all."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import headway
from headway.cli import GROUPS, VERBS
from headway.cli.dispatch import parser_for
from headway.core import errors
from headway.plugins import RECIPES, TARGETS

GOLDEN = Path(__file__).parent / "cli_surface.txt"


def options(action: argparse.Action) -> str:
    return "/".join(action.option_strings) or str(action.metavar or action.dest)


def surface() -> str:
    """Every verb with all it takes, one line each; verbs within a verb too."""
    return "".join(line + "\n" for verb in VERBS for line in lines(verb, parser_for(verb)))


def lines(verb: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    taken = [a for a in parser._actions if not isinstance(a, argparse._HelpAction)]
    yield " ".join([verb, *map(options, taken)])
    for action in taken:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from lines(f"{verb} {name}", inner)


def test_the_command_line_is_the_one_that_was_agreed() -> None:
    assert surface() == GOLDEN.read_text(), f"if this is meant: write the new surface to {GOLDEN}"


def test_registries_are_sorted() -> None:
    for table in (VERBS, TARGETS, RECIPES):
        assert list(table) == sorted(table)


def test_every_verb_stands_in_one_group_of_the_front_page() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == list(VERBS)


def test_public_names_are_these() -> None:
    assert headway.__all__ == [
        "Feed",
        "Job",
        "Loader",
        "Run",
        "RunHandle",
        "__version__",
        "evaluate",
        "launch",
        "load_model",
        "open_run",
        "plan",
        "run",
        "start",
    ]


def test_exit_codes_are_the_documented_ones() -> None:
    assert (errors.FINISHED, errors.FAILED, errors.BAD_INPUT) == (0, 1, 2)
    assert (errors.BUDGET_ENDED, errors.RESUMABLE, errors.LEFT_BEHIND) == (3, 4, 5)
    assert (errors.WORKER_DONE, errors.WORKER_RESTART) == (0, 143)
