"""`--env NAME=VALUE`: the script sees the text as it was typed, whatever it looks like."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.core.errors import BAD_INPUT
from headway.spec import load
from tests.cli.conftest import Headway

VALUES = {
    "plain": "plain",
    "empty": "",
    "blank": " ",
    "spaces": "  two words ",
    "equals": "a=b=c",
    "double quotes": '"quoted"',
    "one quote": "it's",
    "newlines": "one\ntwo\n",
    "tab": "a\tb",
    "comma": "a,b",
    "brace": "{not: json",
    "mapping": '{"a": 1}',
    "list": "[1, 2]",
    "leading zeros": "007",
    "exponent": "1e5",
    "big": "123456789012345678901234567890",
    "true": "true",
    "null": "null",
    "tilde": "~",
    "colon": "key: value",
    "comment": "a # b",
    "anchor": "&a *b !c",
    "backslash": "a\\nb",
    "dollar": "$HOME ${HOME} ${env:HOME} ${env:",
    "not ASCII": "Grüße 🙂",
}
SCRIPT = (
    "import json, os\nprint('ENVIRONMENT ' + json.dumps({k: v for k, v in os.environ.items() if k[:5] == 'TEST_'}))\n"
)


@pytest.fixture
def project(headway: Headway) -> Path:
    Path("train.py").write_text(SCRIPT)
    Path("headway.yaml").write_text("name: job\nscript: train.py\nenv: {TEST_OF_FILE: kept, TEST_0: replaced}\n")
    return Path.cwd()


def test_a_local_run_sees_exactly_what_was_typed(
    headway: Headway, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {f"TEST_{number}": value for number, value in enumerate(VALUES.values())}
    monkeypatch.setenv("TEST_FROM_SHELL", ' "as it is" ')
    words = [word for name, value in given.items() for word in ("--env", f"{name}={value}")]
    said = headway("run", *words, "--env", "TEST_FROM_SHELL")
    assert said.code == 0, said.err
    shown = next(line for line in headway("logs", "last").out.splitlines() if "ENVIRONMENT " in line)
    seen = json.loads(shown.partition("ENVIRONMENT ")[2])
    assert {name: seen.get(name) for name in given} == given
    assert seen["TEST_FROM_SHELL"] == ' "as it is" '
    assert seen["TEST_OF_FILE"] == "kept"


@pytest.mark.parametrize("kind", VALUES)
def test_the_job_holds_exactly_what_was_typed(kind: str, project: Path) -> None:
    job = load(project / "headway.yaml", variables={"TEST_0": VALUES[kind]})
    assert job.env == {"TEST_OF_FILE": "kept", "TEST_0": VALUES[kind]}


def test_a_set_comes_before_and_names_the_same_variable(headway: Headway, project: Path) -> None:
    said = headway("plan", "--json", "--env", "TEST_0=of env", "--set", "env.TEST_0=of set", "--set", "env.B=true")
    env = json.loads(said.out)["job"]["env"]
    assert env["TEST_0"] == "of env"
    assert env["B"] == "true"


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("A.B=1", "A.B"),
        ("=1", "environment variable"),
        ("1A=1", "1A"),
        ("A B=1", "A B"),
        ("RANK=1", "set by Headway"),
        ("HEADWAY_RUN=1", "set by Headway"),
        ("MY_PASSWORD=hunter2", "secrets"),
        ("TEST_0=\udcff", "UTF-8"),
    ],
)
def test_a_name_or_value_that_cannot_be_used_is_refused_where_it_was_typed(
    headway: Headway, project: Path, given: str, hint: str
) -> None:
    said = headway("plan", "--env", given)
    assert said.code == BAD_INPUT
    assert hint in said.err
    assert "--env" in said.err
    assert "hunter2" not in said.err


def test_env_in_a_file_that_is_no_mapping_is_refused(headway: Headway, project: Path) -> None:
    Path("headway.yaml").write_text("name: job\nscript: train.py\nenv: text\n")
    said = headway("plan", "--env", "A=1")
    assert said.code == BAD_INPUT
    assert "env" in said.err
