"""Keys for a user's own project: one program, words split as a shell would, placeholders, named data."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core.errors import BadJob
from headway.core.globs import matches_any
from headway.core.program import entry_files, escape_placeholders, fill_placeholders, placeholder_names, program_text
from headway.spec import Job, dump, loads
from headway.spec.loading import undump


def job(text: str) -> Job:
    return loads(f"name: own\n{text}")


def problem(text: str) -> str:
    with pytest.raises(BadJob) as caught:
        job(text)
    return str(caught.value)


def test_a_text_of_words_is_split_as_a_shell_would() -> None:
    assert job("""module: src.train\nargs: --lr 0.1 --name "two words" """).args == (
        "--lr",
        "0.1",
        "--name",
        "two words",
    )
    assert job("command: python -m src.train").command == ("python", "-m", "src.train")
    assert job("command: [make, train, 3]").command == ("make", "train", "3")
    assert "no closing quotation" in problem("""command: 'python "a'""")


@pytest.mark.parametrize(
    ("typed", "said", "corrected"),
    [
        ("""args: "--name 'a b" """, "close the quotation, or write args as a list", """args: "--name 'a b'" """),
        ("args: {--lr: 0.1, --name: a b}", "write args: --lr 0.1 --name 'a b'", "args: --lr 0.1 --name 'a b'"),
        ("args: {model: {lr: 1}}", "write args: --name value", "args: --name value"),
        ("args: [--lr: 0.1]", "write --lr, 0.1, each an item of its own", "args: [--lr, 0.1]"),
        ("args: [[--lr, 0.1]]", "write --lr, 0.1, each an item of its own", "args: [--lr, 0.1]"),
    ],
)
def test_what_is_said_about_wrong_words_is_accepted_when_typed(typed: str, said: str, corrected: str) -> None:
    text = problem(f"module: a\n{typed}")
    assert "job:3:" in text
    assert said in text
    assert job(f"module: a\n{corrected}").args


def test_one_text_is_split_in_a_file_and_on_the_command_line() -> None:
    assert job("""module: a\nargs: "--lr 1e-3 --name 'a b'" """).args == ("--lr", "1e-3", "--name", "a b")
    text = "name: own\nmodule: a\n"
    assert loads(text, set=["args=--lr 1e-3 --name 'a b'"]).args == ("--lr", "1e-3", "--name", "a b")
    assert loads(text, set=["args=[--lr, 1e-3]"]).args == ("--lr", "1e-3")


def test_exactly_one_program_is_given() -> None:
    assert "both module and command are given" in problem("module: a\ncommand: b")
    assert "one of recipe, script, module, notebook and command is missing" in problem("seed: 1")
    assert "args cannot be used together with command" in problem("command: a\nargs: [b]")


def test_an_unknown_placeholder_is_refused_with_the_one_that_was_meant() -> None:
    text = problem('command: [a, "{rundir}/x"]')
    assert "job:2:14: unknown placeholder {rundir}" in text
    assert "did you mean {run_dir}?" in text
    assert "{{rundir}}" in text
    assert "{data.split}" in problem("command: [a, '{data.split}']\ndata: {splits: gs://bucket/s.json}")


def test_names_under_data_are_the_projects_own() -> None:
    own = job("command: [a, '{data.splits}']\ndata: {splits: gs://bucket/s.json, train: gs://bucket/t}")
    assert own.named_data == {"splits": "gs://bucket/s.json", "train": "gs://bucket/t"}
    lists = job("command: a\ndata: {train: [{source: gs://bucket/t}]}")
    assert lists.data.train[0].source == "gs://bucket/t"
    assert lists.named_data == {}
    assert "unknown key 'splits' in data" in problem("recipe: captioning\ndata: {splits: gs://bucket/s.json}")


def test_plans_of_other_jobs_keep_their_bytes_and_new_keys_survive() -> None:
    keys = {"module", "notebook", "command", "python", "resume", "keep", "ends_when", "named_data"}
    assert not keys & set(dump(job("recipe: captioning")))
    own = job(
        "command: a {run}\nresume: {args: --resume x}\nkeep: ['*.pt']\nends_when: {idle: 10m}\ndata: {s: gs://b/s}"
    )
    assert undump(dump(own)) == own
    assert own.ends_when.idle == 600


def test_a_secrets_path_needs_a_file(tmp_path: Path) -> None:
    assert "secrets.K.at is only for files" in problem("command: a\nsecrets: {K: {ref: env:K, at: k.json}}")
    assert job("command: a\nsecrets: {K: {ref: env:K, as: file, at: c/k.json}}").secrets["K"].at == "c/k.json"
    assert "below the job file" in problem("command: a\nsecrets: {K: {ref: env:K, as: file, at: ../k.json}}")


def test_placeholders_are_filled_and_json_is_left_alone() -> None:
    values = {"run": "r1", "data.a-b": "/x"}
    assert fill_placeholders("{run}/{data.a-b}/{unknown}", values) == "r1//x/{unknown}"
    assert fill_placeholders('{"lr": {"x": 1}}', values) == '{"lr": {"x": 1}}'
    assert placeholder_names("{run} {{run}} {Run} { run }") == ["run"]
    assert fill_placeholders(escape_placeholders("{run} {nothing}"), values) == "{run} {nothing}"


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.pt", "a.pt", True),
        ("*.pt", "deep/er/a.pt", True),
        ("models/**", "models/a/b", True),
        ("models/", "models/a", True),
        ("models", "other/models/a", True),
        ("models/*.pt", "models/deep/a.pt", False),
        ("models/**/best.pt", "models/best.pt", True),
        ("models/**/best.pt", "models/x/y/best.pt", True),
        ("a[0-9].pt", "a3.pt", True),
        ("a[!0-9].pt", "a3.pt", False),
        ("*.pt", "a.pth", False),
    ],
)
def test_patterns_match_as_in_gitignore(pattern: str, path: str, matches: bool) -> None:
    assert matches_any(path, [pattern]) is matches


def test_a_job_says_what_it_runs_and_where_its_program_begins() -> None:
    own = dump(job("module: src.train\nargs: --lr 1"))
    assert program_text(own) == "module src.train --lr 1"
    assert "src/train.py" in entry_files(own)
    assert entry_files(dump(job("command: torchrun --nproc 2 train/main.py"))) == ["train/main.py"]
