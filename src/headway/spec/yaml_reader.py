"""Parse YAML to a tree with positions: 1.2 core schema, one document, no tags, limited in size. Imports PyYAML.

The tree is built from the parser's events with an explicit stack, which limits both depth and the expansion of aliases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from headway.core.errors import Problem
from headway.spec.rules import Node, Scalar

MAX_BYTES = 1_000_000
MAX_DEPTH = 50
MAX_VALUES = 100_000  # after expanding aliases

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_UNUSABLE = re.compile("[\\0\\ud800-\\udfff]")  # YAML allows them as escapes; UTF-8 files and arguments do not
_INT = re.compile(r"[-+]?[0-9]{1,40}|0o[0-7]{1,40}|0x[0-9a-fA-F]{1,40}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}

TABS = "indent with spaces, not tabs"

# The parser's messages, and the fix for each. The first match wins.
_FIXES = (
    ("tab", TABS),
    ("mapping values are not allowed", "write `key: value`, quote a value that contains ': ', check the indentation"),
    ("could not find expected ':'", "write `key: value`, with a space after the colon"),
    ("found unexpected end of stream", "close the quote that was opened"),
    ("'-' indicator", "start each entry of a list with `- `, all indented alike"),
    ("unknown escape character", "use single quotes, in which a backslash is only a backslash"),
    ("did not find expected ',' or", "close the bracket that was opened above, or put a comma here"),
    ("expected <block end>", "indent the keys of one mapping alike"),
    ("did not find expected key", "indent the keys of one mapping alike"),
    ("cannot start any token", "put quotes around the value"),
)


def parse(text: str, file: str, problems: list[Problem]) -> Node | None:
    """Parse the document to a tree. Adds errors to `problems`; returns None if nothing could be parsed."""
    odd = _UNPRINTABLE.search(text)
    if odd:
        where = f"{file}:{_position(text, odd.start())}"
        problems.append(Problem(what=f"a character that YAML does not allow: {odd[0]!r}", where=where, fix="remove it"))
        return None
    builder = _Builder(file, problems)
    try:
        return builder.build(yaml.parse(text, Loader=_loader()))
    except _Stop as stop:
        problems.append(stop.problem)
    except yaml.MarkedYAMLError as error:
        problems.append(_translated(error, file, text))
    return None


def _loader() -> Any:
    """Return libyaml's parser if PyYAML was built with it: about ten times as fast."""
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def scalar(text: str) -> Scalar:
    """Convert a plain scalar by YAML 1.2's core schema: `1e-3` is a number, `no` and `12:30` are text."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(text)
    return float(text.replace(".", "")) if _NOT_FINITE.fullmatch(text) else text


def _position(text: str, index: int) -> str:
    line = text.count("\n", 0, index)
    return f"{line + 1}:{index - (text.rfind(chr(10), 0, index) + 1) + 1}"


def _translated(error: yaml.MarkedYAMLError, file: str, text: str) -> Problem:
    """Convert the parser's error to a Problem with its position, its context and a fix."""
    begun, mark = error.context_mark, error.problem_mark or error.context_mark
    where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
    words = error.problem or "something else"
    fix = next((fix for sign, fix in _FIXES if sign in words), "put quotes around text with special characters")
    if mark and text[mark.index : mark.index + 1] == "\t":
        words, fix = "found a tab", TABS
    if begun and mark and begun.line < mark.line:
        words = f"{words} ({error.context}, line {begun.line + 1})"
    return Problem(what=f"not YAML: {words}", where=where, fix=fix)


class _Stop(Exception):
    """An error after which the rest of the document cannot be parsed."""

    def __init__(self, what: str, where: str, fix: str) -> None:
        self.problem = Problem(what=what, where=where, fix=fix)


@dataclass(slots=True)
class _Open:
    """A list or mapping that has not ended yet. The items of a mapping alternate between key and value."""

    mapping: bool
    where: str
    anchor: str | None
    items: list[Node] = field(default_factory=list)
    size: int = 1  # number of values in it, after expanding aliases


class _Builder:
    """Build a tree from parser events."""

    def __init__(self, file: str, problems: list[Problem]) -> None:
        self.file = file
        self.problems = problems
        self.open: list[_Open] = []
        self.anchors: dict[str, tuple[Node, int]] = {}
        self.root: Node | None = None

    def build(self, events: Iterable[Any]) -> Node | None:
        for event in events:
            where = f"{self.file}:{event.start_mark.line + 1}:{event.start_mark.column + 1}"
            if getattr(event, "tag", None) is not None:
                self._report(f"the tag {event.tag} is not allowed", where, "remove the tag; job files are plain data")
            if isinstance(event, yaml.ScalarEvent):
                self._add(self._scalar(event, where), 1, event.anchor)
            elif isinstance(event, yaml.AliasEvent):
                self._alias(event.anchor, where)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._start(event, where)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._end()
            elif isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
                raise _Stop("a second document", where, "keep one job per file: remove everything from this `---` on")
        return self.root

    def _report(self, what: str, where: str, fix: str) -> None:
        self.problems.append(Problem(what=what, where=where, fix=fix))

    def _scalar(self, event: Any, where: str) -> Node:
        odd = _UNUSABLE.search(event.value)
        if odd:
            self._report(f"the character {odd[0]!r} cannot be used", where, "remove it")
        value = scalar(event.value) if event.implicit[0] and event.tag is None else event.value
        return Node(value, where, text=event.value)

    def _alias(self, anchor: str | None, where: str) -> None:
        if anchor is None or anchor not in self.anchors:
            raise _Stop(f"*{anchor} is used before or inside its definition", where, f"define &{anchor} above it")
        node, size = self.anchors[anchor]
        self._add(node, size, None)

    def _start(self, event: Any, where: str) -> None:
        if len(self.open) == MAX_DEPTH:
            raise _Stop(f"nested more than {MAX_DEPTH} levels deep", where, "flatten it")
        self.open.append(_Open(isinstance(event, yaml.MappingStartEvent), where, event.anchor))

    def _end(self) -> None:
        done = self.open.pop()
        value = self._mapping(done.items) if done.mapping else tuple(done.items)
        self._add(Node(value, done.where), done.size, done.anchor)

    def _add(self, node: Node, size: int, anchor: str | None) -> None:
        if anchor is not None:
            self.anchors[anchor] = node, size
        if not self.open:
            self.root = node
            return
        parent = self.open[-1]
        parent.items.append(node)
        parent.size += size
        if parent.size > MAX_VALUES:
            raise _Stop(
                f"more than {MAX_VALUES:,} values after expanding aliases",
                parent.where,
                "move the data to files of their own, and name them in `data`",
            )

    def _mapping(self, items: list[Node]) -> dict[str, Node]:
        members: dict[str, Node] = {}
        for key, value in zip(items[::2], items[1::2], strict=True):
            if isinstance(key.value, (dict, tuple)) or not key.text:
                self._report("a key must be a word", key.where, "write `key: value`")
            elif key.text == "<<":
                self._report("merge keys (<<) are not part of YAML 1.2", key.where, "write the keys out")
            elif key.text in members:
                first = members[key.text].key.removeprefix(f"{self.file}:")
                self._report(f"'{key.text}' is given twice (first at {first})", key.where, "remove one of the two")
            else:
                members[key.text] = Node(value.value, value.where, key=key.where, text=value.text)
        return members


# Apply overrides of the command line to the tree before validation, so that the same rules hold for them.
#
# `--set key=value` takes its type from the schema. `--env NAME=VALUE` is always a text and is not expanded.


def override(tree: Node, settings: Iterable[str], problems: list[Problem]) -> Node:
    """Return the tree with each `dotted.key=value` applied. Adds those that do not fit to `problems`."""
    for setting in settings:
        key, equals, text = setting.partition("=")
        path = key.strip().split(".")
        where = f"--set {_without_secrets(setting, path)}"
        if not equals or not all(path) or len(path) > MAX_DEPTH:
            fix = "write --set config.epochs=3"
            problems.append(Problem(what="an override must be KEY=VALUE", where=where, fix=fix))
            continue
        try:
            tree = _set_at(tree, path, _value(text, where), where)
        except _BadPath as bad:
            problems.append(bad.problem)
    return tree


def put_variables(tree: Node, variables: Mapping[str, str], problems: list[Problem]) -> Node:
    """Return the tree with each variable added under `env`, its value exactly the given text."""
    for name, value in variables.items():
        where = f"--env {name}=…"  # without the value: a secret typed by mistake must not reach a log
        if not _is_utf8(value):
            problems.append(
                Problem(
                    what=f"the value of {name} is not UTF-8 text", where=where, fix="encode it, for example with base64"
                )
            )
            continue
        try:
            tree = _set_at(tree, ["env", name], Node(value, where, key=where, text=value, literal=True), where)
        except _BadPath as bad:
            problems.append(bad.problem)
    return tree


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _BadPath(Exception):
    def __init__(self, what: str, where: str, fix: str) -> None:
        self.problem = Problem(what=what, where=where, fix=fix)


def _without_secrets(setting: str, path: list[str]) -> str:
    """Redact an override: a literal secret typed by mistake must not reach a log."""
    if path[0] in ("env", "secrets") or path[:2] == ["notify", "webhook"]:
        return f"{'.'.join(path)}=…"
    return setting


def _value(text: str, where: str) -> Node:
    """Parse `[a, b]` and `{a: 1}` as collections; everything else is one scalar, even with colons."""
    if text[:1] in ("[", "{"):
        trouble: list[Problem] = []
        node = parse(text, where, trouble)
        if node is not None and not trouble:
            return replace(_relocate(node, where), text=text)
        return Node(text, where, key=where, text=text, loose=True)  # the reader reports what the key expects
    return Node(scalar(text), where, key=where, text=text, loose=True)


def _relocate(node: Node, where: str) -> Node:
    """Return a copy of the tree with all positions set to `where`."""
    value = node.value
    if isinstance(value, dict):
        value = {name: _relocate(member, where) for name, member in value.items()}
    elif isinstance(value, tuple):
        value = tuple(_relocate(item, where) for item in value)
    return replace(node, value=value, where=where, key=where, loose=True)


def _set_at(node: Node, path: list[str], new: Node, where: str, so_far: str = "") -> Node:
    """Return `node` with `new` at `path` below it."""
    if not path:
        return replace(new, key=node.key or where)
    step, rest = path[0], path[1:]
    here = f"{so_far}.{step}" if so_far else step
    if node.value is None or node.value == {}:
        node = replace(node, value=() if step == "0" else {}, where=where)
    missing = Node(None, where, key=where)
    if isinstance(node.value, dict):
        inside = _set_at(node.value.get(step, missing), rest, new, where, here)
        return replace(node, value={**node.value, step: inside})
    if isinstance(node.value, tuple):
        index = _index(step, len(node.value), so_far, where)
        before, after = node.value[:index], node.value[index + 1 :]
        inside = _set_at(node.value[index] if index < len(node.value) else missing, rest, new, where, here)
        return replace(node, value=(*before, inside, *after))
    raise _BadPath(f"{so_far} is a single value: there is no {here}", where, f"write --set {so_far}=…")


def _index(step: str, length: int, path: str, where: str) -> int:
    if step.isdecimal() and step.isascii() and len(step) < 9 and int(step) <= length:
        return int(step)
    raise _BadPath(
        f"{path} is a list of {length}: '{step}' is not an index of it",
        where,
        f"count from 0; {path}.{length} adds one at the end",
    )
