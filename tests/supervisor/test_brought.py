"""Values laid ready as files in memory: they reach who needs them, are hidden from logs, and do not stay."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.core.errors import BadInput
from headway.supervisor import rank_env
from tests.supervisor.supervised import Case, cases

Make = Callable[..., Case]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    yield from cases(tmp_path)


def test_what_was_brought_reaches_the_ranks_is_hidden_from_logs_and_removed(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "brought"
    folder.mkdir()
    (folder / "TOKEN").write_text("for-the-script-1")
    (folder / "AWS_SECRET_ACCESS_KEY").write_text("for-the-store-2")
    secrets = {"TOKEN": {"ref": "env:A_VARIABLE_OF_ANOTHER_MACHINE"}}
    case = make("print(os.environ['TOKEN'], os.environ['AWS_SECRET_ACCESS_KEY'])", job={"secrets": secrets})
    assert case.run(HEADWAY_SECRETS_DIR=str(folder)) == 0
    assert case.log() == ["*** ***"]
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_keeps_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(path: Path) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", read_only)
    (tmp_path / "TOKEN").write_text("value")
    env = {rank_env.FOLDER: str(tmp_path)}
    rank_env.take_over(env)
    assert rank_env.injected_secrets(env) == {"TOKEN": "value"}


def test_nothing_brought_is_nothing_changed() -> None:
    env = {"PATH": "/bin"}
    rank_env.take_over(env)
    assert env == {"PATH": "/bin"}
    assert rank_env.injected_secrets(env) == {}


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="HEADWAY_SECRETS_DIR"):
        rank_env.take_over({rank_env.FOLDER: str(tmp_path / "nowhere")})


def test_what_was_told_over_standard_input_reaches_who_needs_it() -> None:
    env = {"PATH": "/bin", rank_env.STDIN: "1"}
    rank_env.take_over(env, io.StringIO('{"TOKEN": "größer\\nals eine Zeile"}'))
    assert rank_env.injected_secrets(env) == {"TOKEN": "größer\nals eine Zeile"}
    assert rank_env.STDIN not in env, "a rank would wait for it again"


@pytest.mark.parametrize("told", ["", "half-a-secr", '["TOKEN"]', '{"TOKEN": 1}'])
def test_what_was_told_badly_is_refused_without_a_word_of_it(told: str) -> None:
    with pytest.raises(BadInput) as refused:
        rank_env.take_over({rank_env.STDIN: "1"}, io.StringIO(told))
    assert not told or told not in str(refused.value)
