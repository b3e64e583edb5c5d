"""The comments beside a dataclass's fields, read from its source. Only for what is generated: never when a job runs."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from typing import Any


def field_comments(cls: type[Any]) -> dict[str, str]:
    """field -> the comment on its line, or the whole-line comments right above it."""
    source = textwrap.dedent(inspect.getsource(cls))
    beside, alone = _comments(source)
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field in body.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            lines = range(field.lineno, (field.end_lineno or field.lineno) + 1)
            own = [beside[line] for line in lines if line in beside]
            found[field.target.id] = " ".join(own or _above(field.lineno, alone))
    return found


def summary(cls: type[Any]) -> str:
    """The first sentence of a class's docstring; a dataclass without one gets a made-up one, which says nothing."""
    text = inspect.cleandoc(cls.__doc__ or "")
    return "" if text.startswith(f"{cls.__name__}(") else text.replace("\n", " ")


def _comments(source: str) -> tuple[dict[int, str], dict[int, str]]:
    """line -> comment, for those that share their line with code and for those that do not."""
    beside: dict[int, str] = {}
    alone: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            place = beside if token.line[: token.start[1]].strip() else alone
            place[token.start[0]] = token.string.lstrip("#").strip()
    return beside, alone


def _above(line: int, alone: dict[int, str]) -> list[str]:
    lines: list[str] = []
    while line - 1 in alone:
        line -= 1
        lines.insert(0, alone[line])
    return lines
