"""Changes of the command line, put into the tree before it is read, so that they obey the same rules as the file.

`--set key=value` takes its type from the schema. `--env NAME=VALUE` is a text and stays as it was typed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from headway.core.errors import Problem
from headway.spec.document import Node
from headway.spec.yaml_reader import MAX_DEPTH, parse, scalar


def override(tree: Node, settings: Iterable[str], problems: list[Problem]) -> Node:
    """The tree with each `dotted.key=value` put in its place. What cannot be placed goes to `problems`."""
    for setting in settings:
        key, equals, text = setting.partition("=")
        path = key.strip().split(".")
        where = f"--set {_without_secrets(setting, path)}"
        if not equals or not all(path) or len(path) > MAX_DEPTH:
            fix = "write --set config.epochs=3"
            problems.append(Problem(what="an override is a key, = and a value", where=where, fix=fix))
            continue
        try:
            tree = _placed(tree, path, _value(text, where), where)
        except _NoPlace as bad:
            problems.append(bad.problem)
    return tree


def put_variables(tree: Node, variables: Mapping[str, str], problems: list[Problem]) -> Node:
    """The tree with each variable under `env`, its value exactly the given text."""
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
            tree = _placed(tree, ["env", name], Node(value, where, key=where, text=value, literal=True), where)
        except _NoPlace as bad:
            problems.append(bad.problem)
    return tree


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _NoPlace(Exception):
    def __init__(self, what: str, where: str, fix: str) -> None:
        self.problem = Problem(what=what, where=where, fix=fix)


def _without_secrets(setting: str, path: list[str]) -> str:
    """What may be shown of an override: a literal secret typed by mistake must not reach a log."""
    if path[0] in ("env", "secrets") or path[:2] == ["notify", "webhook"]:
        return f"{'.'.join(path)}=…"
    return setting


def _value(text: str, where: str) -> Node:
    """`[a, b]` and `{a: 1}` are collections; everything else is one scalar, colons and all."""
    if text[:1] in ("[", "{"):
        trouble: list[Problem] = []
        node = parse(text, where, trouble)
        if node is not None and not trouble:
            return replace(_moved(node, where), text=text)
        return Node(text, where, key=where, text=text, loose=True)  # the reader says what it should have been
    return Node(scalar(text), where, key=where, text=text, loose=True)


def _moved(node: Node, where: str) -> Node:
    """The same, as if all of it stood at `where`."""
    value = node.value
    if isinstance(value, dict):
        value = {name: _moved(member, where) for name, member in value.items()}
    elif isinstance(value, tuple):
        value = tuple(_moved(item, where) for item in value)
    return replace(node, value=value, where=where, key=where, loose=True)


def _placed(node: Node, path: list[str], new: Node, where: str, so_far: str = "") -> Node:
    """`node` with `new` put at `path` below it."""
    if not path:
        return replace(new, key=node.key or where)
    step, rest = path[0], path[1:]
    here = f"{so_far}.{step}" if so_far else step
    if node.value is None or node.value == {}:
        node = replace(node, value=() if step == "0" else {}, where=where)
    missing = Node(None, where, key=where)
    if isinstance(node.value, dict):
        inside = _placed(node.value.get(step, missing), rest, new, where, here)
        return replace(node, value={**node.value, step: inside})
    if isinstance(node.value, tuple):
        index = _index(step, len(node.value), so_far, where)
        before, after = node.value[:index], node.value[index + 1 :]
        inside = _placed(node.value[index] if index < len(node.value) else missing, rest, new, where, here)
        return replace(node, value=(*before, inside, *after))
    raise _NoPlace(f"{so_far} is a single value: there is no {here}", where, f"write --set {so_far}=…")


def _index(step: str, length: int, path: str, where: str) -> int:
    if step.isdecimal() and step.isascii() and len(step) < 9 and int(step) <= length:
        return int(step)
    raise _NoPlace(
        f"{path} is a list of {length}: '{step}' is not one of its places",
        where,
        f"count from 0; {path}.{length} adds one at the end",
    )
