"""A document as a tree of values that remember where they stand. Files, overrides and plans all become one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Node:
    """One value. `where` is file:line:column, or the override or the path it came from."""

    value: Scalar | tuple[Node, ...] | dict[str, Node]
    where: str
    key: str = ""  # where its key stands, if it is a member of a mapping
    text: str = ""  # the scalar as it was typed, before it became a number
    loose: bool = False  # from the command line, where nobody quotes: a text field takes `text`
    literal: bool = False  # a text as it is: `${env:NAME}` and `$NAME` in it stay

    @property
    def key_or_value(self) -> str:
        """Where to point for a problem with the key itself."""
        return self.key or self.where


def members(node: Node) -> dict[str, Node]:
    """A mapping's members; none if it is something else, which somebody else reports."""
    return node.value if isinstance(node.value, dict) else {}


def tree_of(plain: Any, where: str) -> Node:
    """Plain JSON as a tree, each value placed by its path: what `dump` wrote is read by the same reader."""
    if isinstance(plain, Mapping):
        return Node({str(key): tree_of(value, f"{where}.{key}") for key, value in plain.items()}, where)
    if isinstance(plain, (list, tuple)):
        return Node(tuple(tree_of(value, f"{where}.{i}") for i, value in enumerate(plain)), where)
    return Node(plain, where, text=str(plain))
