"""The pages of the five projects: every command of ours in them can be typed, every file that they name is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from headway import cli
from headway.cli import VERBS
from headway.cli.dispatch import DEFAULT, parser_for

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs" / "projects").glob("*.md"))
FIVE = {"captions-gke", "translation-statefulset", "attend-vizwiz-ssh", "leaves-vertex-package", "cards-vertex"}


def commands(page: Path) -> list[list[str]]:
    """Of the blocks and of the text between backticks."""
    text = page.read_text()
    blocks = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    inline = re.findall(r"`(headway [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [shlex.split(line) for line in (*blocks, *inline) if line.startswith("headway ")]


def test_there_is_a_page_for_each_project() -> None:
    assert {page.stem for page in PAGES} == FIVE


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_is_one_that_can_be_typed(page: Path) -> None:
    typed = commands(page)
    assert {words[1] for words in typed} >= {"run", "plan", "eval", "serve", "gc"}
    for words in typed:
        verb, rest = words[1], words[2:]
        assert verb in VERBS, words
        if verb in ("gc", "doctor", "serve", "image", "stop", "resume") and not rest:
            continue  # named in a sentence
        parser = parser_for(verb)
        parsed = parser.parse_args(rest) if parser._subparsers else parser.parse_intermixed_args(rest)
        file = getattr(parsed, "file", None)
        assert file in (None, DEFAULT) or (ROOT / file).is_file(), words


@pytest.mark.torch
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_is_run_here_first_plans_as_it_is_typed(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))
    monkeypatch.chdir(ROOT)
    here = [words[2:] for words in commands(page) if words[1] == "run" and ("--on" not in words or "local" in words)]
    first = next(words for words in here if words)
    assert cli.main(["plan", *first]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_that_is_linked_is_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
    assert f"examples/{page.stem}.yaml" in page.read_text()
    assert f"docs/projects/{page.stem}.md" in (ROOT / "examples" / f"{page.stem}.yaml").read_text() or page.stem in (
        "captions-gke",
        "translation-statefulset",
    )
