"""YAML: 1.2's meaning of scalars, positions kept, and nothing that can run away."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import yaml as pyyaml
from hypothesis import example, given
from hypothesis import strategies as st

from headway.core.errors import Problem
from headway.spec import yaml_reader
from headway.spec.rules import Node

LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(c + 1)}: &{chr(c + 1)} [{','.join([f'*{chr(c)}'] * 9)}]\n" for c in range(ord("a"), ord("i"))
)


@pytest.fixture(params=["libyaml", "pure Python"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here holds with either of PyYAML's parsers."""
    if request.param == "pure Python":
        monkeypatch.setattr(yaml_reader, "_loader", lambda: pyyaml.SafeLoader)
    elif not pyyaml.__with_libyaml__:
        pytest.skip("PyYAML was built without libyaml")


def parsed(text: str) -> tuple[Node | None, list[Problem]]:
    problems: list[Problem] = []
    return yaml_reader.parse(text, "f", problems), problems


def plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {name: plain(member) for name, member in node.value.items()}
    return [plain(item) for item in node.value] if isinstance(node.value, tuple) else node.value


def the_problem(text: str) -> Problem:
    _, problems = parsed(text)
    assert len(problems) == 1, problems
    return problems[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-1.", -1.0),
        ("0o17", 15),
        ("0x1F", 31),
        ("017", 17),
        ("+12", 12),
        ("no", "no"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("12:30", "12:30"),
        ("1:30:00", "1:30:00"),
        ("2024-01-02", "2024-01-02"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("'1'", "1"),
        ('"true"', "true"),
        ("T4:1", "T4:1"),
        ("=", "="),
        ("9" * 41, "9" * 41),
    ],
)
def test_scalars_mean_what_yaml_1_2_says(text: str, value: object) -> None:
    node, problems = parsed(f"key: {text}\n")
    assert not problems
    assert node is not None
    assert plain(node) == {"key": value}
    assert type(plain(node)["key"]) is type(value)


def test_every_value_and_key_knows_its_place() -> None:
    node, _ = parsed("# a comment\nname: x\ndata:\n  train:\n    - {source: a, weight: 2}\n")
    assert node is not None
    source = node.value["data"].value["train"].value[0].value["source"]  # type: ignore[index,call-overload,union-attr]
    assert isinstance(source, Node)
    assert (source.where, source.key) == ("f:5:16", "f:5:8")


def test_aliases_are_written_out() -> None:
    node, problems = parsed("a: &x {k: 1}\nb: [*x, *x]\n")
    assert not problems
    assert node is not None
    assert plain(node) == {"a": {"k": 1}, "b": [{"k": 1}, {"k": 1}]}


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("a: [1, 2\nb: 3\n", "f:2:", "not YAML"),
        ("a: 'x\n", "f:", "not YAML"),
        ("a: b: c\n", "f:1:5", "not YAML"),
        ("a:\n\tb: 1\n", "f:2:1", "not YAML"),
        ("a: 1\n b: 2\n", "f:2:", "not YAML"),
        ("a: @x\n", "f:1:4", "not YAML"),
        ("a: *nobody\n", "f:1:4", "*nobody is used before or inside its definition"),
        ("a: &a [*a]\n", "f:1:8", "*a is used before or inside its definition"),
        ("a: !!python/object/apply:os.system [ls]\n", "f:1:4", "tag"),
        ("a: !!str 1\n", "f:1:4", "tag"),
        ("a: ! x\n", "f:1:4", "tag"),
        ("!!map {a: 1}\n", "f:1:1", "tag"),
        ("a: 1\nb: 2\na: 3\n", "f:3:1", "'a' is given twice (first at 1:1)"),
        ("? [x]\n: y\n", "f:1:3", "a key must be a word"),
        ("? {x: 1}\n: y\n", "f:1:3", "a key must be a word"),
        (": y\n", "f:1:1", "not YAML"),
        ("'': y\n", "f:1:1", "a key must be a word"),
        ('a: "\\0"\n', "f:1:4", "cannot be used"),
        ("b: &b {x: 1}\na:\n  <<: *b\n", "f:3:3", "merge keys"),
        ("a: 1\n---\nb: 2\n", "f:2:1", "a second document"),
        ("a: \x00\n", "f:1:4", "a character that YAML does not allow"),
        ("ok: 1\nab: \x1b[0m\n", "f:2:5", "a character that YAML does not allow"),
        ("a: \ud800\n", "f:1:4", "a character that YAML does not allow"),
    ],
)
def test_bad_yaml_is_one_problem_with_its_place_and_a_way_out(text: str, where: str, words: str) -> None:
    problem = the_problem(text)
    assert problem.where.startswith(where)
    assert words in problem.what
    assert problem.fix


def test_a_tab_is_called_a_tab() -> None:
    assert the_problem("a:\n\tb: 1\n").fix == "indent with spaces, not tabs"


def test_a_billion_laughs_end_before_they_are_told() -> None:
    node, problems = parsed(LAUGHS)
    assert node is None
    assert "more than 100,000 values" in problems[0].what


@pytest.mark.parametrize("bomb", ["[" * 100_000, "{a: " * 100_000, "- " * 100_000, "? " * 100_000, "[{a: [" * 30_000])
def test_deep_nesting_ends_quickly_and_without_recursion(bomb: str) -> None:
    node, problems = parsed(bomb)
    assert node is None
    assert "nested more than 50 levels deep" in problems[0].what


def test_a_long_flat_list_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_reader, "MAX_VALUES", 1000)
    assert not parsed(f"[{'1,' * 999}]")[1]
    assert "more than 1,000 values" in the_problem(f"[{'1,' * 1000}]").what


def test_all_problems_of_a_readable_document_come_at_once() -> None:
    _, problems = parsed("a: !!str x\nb: 1\nb: 2\n? [k]\n: v\n")
    assert [problem.where for problem in problems] == ["f:1:4", "f:3:1", "f:4:3"]


def test_a_file_from_windows_reads_the_same() -> None:
    node, problems = parsed("a: 1\r\nb:\r\n  - x\r\n")
    assert not problems
    assert node is not None
    assert plain(node) == {"a": 1, "b": ["x"]}


# Without what JSON leaves unescaped and YAML 1.1's parsers take for line breaks or byte order marks.
LETTERS = st.characters(exclude_categories=("Cc", "Cf", "Cn", "Cs", "Zl", "Zp"))
WORDS = st.text(LETTERS).filter(lambda word: word != "<<")
NUMBERS = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
KEYS = WORDS.filter(bool)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, JSON, max_size=4))
def test_whatever_json_can_say_is_read_as_json_means_it(document: dict[str, Any]) -> None:
    node, problems = parsed(json.dumps(document, ensure_ascii=False))
    assert not problems
    assert node is not None
    assert plain(node) == document


@given(st.text(alphabet="abc:-?[]{}&*!|>'\"%@`#, \n\t0123456789.~<=", max_size=60))
@example("!<tag:x> a")
@example("%YAML 9.9\n---\na: 1")
@example("&a &b c")
def test_no_text_whatever_ends_in_anything_but_a_tree_or_problems(text: str) -> None:
    node, problems = parsed(text)
    assert problems or node is None or isinstance(node, Node)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_as_python_prints_it_is_that_number(number: float) -> None:
    value = yaml_reader.scalar(repr(number))
    assert isinstance(value, float)
    assert math.copysign(1, value) == math.copysign(1, number)
    assert value == number
