"""Single values: texts, numbers, switches. Each is checked, or reported with what to write instead."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.errors import Problem
from headway.spec import marks, units
from headway.spec.kinds import described, example
from headway.spec.tree import Node

BAD: Any = object()  # stands where a value could not be read; the reason is among the problems

WHERE_EXPANDED = "data sources, outputs, export.to, init_from, cache.dir, image and env"
_REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_SHELL_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
_BIGGEST = 2**63  # what other programs that read a plan can hold
_SWITCHES = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reading needs to know, and where it reports."""

    problems: list[Problem]
    env: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None  # where files that the document names must lie; None: they are not looked for
    typed: bool = True  # as people type it; False: plain JSON as `dump` wrote it

    def report(self, what: str, where: str, fix: str = "") -> Any:
        self.problems.append(Problem(what=what, where=where, fix=fix))
        return BAD


def last_key(path: str) -> str:
    return path.rpartition(".")[2]


def shown(node: Node) -> str:
    """What was found, for a message."""
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, tuple):
        return "a list"
    if isinstance(node.value, str):
        return f"the text '{node.value[:60]}'"
    return "nothing" if node.value is None else node.text[:60]


def wrong_type(node: Node, annotation: Any, path: str, to: Reading) -> Any:
    what = f"{path} must be {described(annotation)}, not {shown(node)}"
    return to.report(what, node.where, _retyped(node, annotation, last_key(path)))


def _retyped(node: Node, annotation: Any, key: str) -> str:
    """The line to write instead, where it can be guessed."""
    value = node.value
    if annotation is bool and isinstance(value, str) and value.lower() in _SWITCHES:
        return f"write {key}: {_SWITCHES[value.lower()]}"
    if annotation is str and isinstance(value, (int, float)):
        return f'write {key}: "{node.text}"'
    if annotation is int and isinstance(value, float) and value.is_integer():
        return f"write {key}: {int(value)}"
    return f"write it as in {key}: {example(annotation)}"


def read_bool(node: Node, path: str, to: Reading) -> Any:
    return node.value if isinstance(node.value, bool) else wrong_type(node, bool, path, to)


def read_number(node: Node, kind: type, extra: tuple[object, ...], path: str, to: Reading) -> Any:
    """A whole number or any finite number, within its bounds. Sizes and durations are typed with units."""
    unit = next((mark for mark in marks.forms(extra) if mark in ("duration", "size")), None)
    if to.typed and unit:
        return _with_unit(node, units.duration if unit == "duration" else units.size, unit, path, to)
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        return wrong_type(node, kind, path, to)
    if isinstance(value, int) and abs(value) >= _BIGGEST:
        return to.report(f"{path}: {shown(node)} is too large", node.where, "write a smaller number")
    if not math.isfinite(value):  # JSON has no such number, and a plan is JSON
        return to.report(f"{path}: {shown(node)} is not a finite number", node.where, "write a finite one")
    for limit in marks.bounds(extra):
        if not limit.holds(value):
            what = f"{path} must be {limit.words}, not {shown(node)}"
            return to.report(what, node.where, f"write {last_key(path)}: {limit.example}")
    return kind(value)


def _with_unit(node: Node, read: Any, unit: str, path: str, to: Reading) -> Any:
    if isinstance(node.value, (bool, dict, tuple)) or node.value is None:
        form = marks.FORMS[unit]
        return to.report(f"{path} must be {form.words}, not {shown(node)}", node.where, f"write {form.example}")
    value = read_form(node, read, path, to)
    if value is not BAD and value >= _BIGGEST:
        return to.report(f"{path}: {node.text[:60]} is too large", node.where, "write a smaller one")
    return value


def read_form(node: Node, read: Any, path: str, to: Reading) -> Any:
    """A value that is typed as a short text: `10m`, `T4:1`."""
    try:
        return read(node.text)
    except units.BadUnit as bad:
        return to.report(f"{path}: {bad.what}", node.where, bad.fix)


def read_text(node: Node, extra: tuple[object, ...], path: str, to: Reading) -> Any:
    """A text. `${env:NAME}` is expanded where the mark says so, and refused elsewhere."""
    text = _text_of(node, extra)
    if text is None:
        return _no_text(node, extra, path, to)
    if to.typed and not node.literal:
        text = _expand(node, text, path, to) if marks.EXPANDED in extra else _unexpanded(node, text, path, to)
        if text is BAD:
            return BAD
    for form in marks.forms(extra):
        if not marks.matches(form, text):
            return _bad_form(node, text, form, path, to)
    trouble = _no_file(to.folder / text) if "project file" in extra and to.folder is not None else None
    if trouble:
        return to.report(f"{path}: {trouble}", node.where, "name a file, relative to the job file")
    return text


def _no_file(path: Path) -> str | None:
    """Why a path is not a file, if it is not."""
    try:
        if path.is_file():
            return None
        return f"{path} is a folder" if path.is_dir() else f"there is no file {path}"
    except OSError as error:  # a name that is too long, a folder that may not be entered
        return f"{str(path)[:200]} cannot be looked at: {error.strerror}"


def _text_of(node: Node, extra: tuple[object, ...]) -> str | None:
    if isinstance(node.value, str):
        return node.value
    as_typed = node.loose or (marks.AS_TYPED in extra and not isinstance(node.value, (dict, tuple)))
    return node.text if as_typed and node.value is not None else None


def _no_text(node: Node, extra: tuple[object, ...], path: str, to: Reading) -> Any:
    if "secret" in extra:  # what stands there may be the secret: not a word of it in a message
        what = f"{path} must be a reference to a secret"
        return to.report(what, node.where, f"write {marks.SECRET_FORMS}")
    return wrong_type(node, str, path, to)


def _bad_form(node: Node, text: str, form: str, path: str, to: Reading) -> Any:
    if form == "secret":
        variable = last_key(path) if "secrets." in path else "NAME"
        what = f"{path} must be a reference to a secret, not the secret itself"
        fix = f"put the value into an environment variable and write env:{variable} (or {marks.SECRET_FORMS})"
        return to.report(what, node.where, fix)
    wanted = marks.FORMS[form]
    fix = f"write {_renamed(text, form) or _meant(text, form) or wanted.example}"
    return to.report(f"{path} must be {wanted.words}, not '{text[:60]}'", node.where, fix)


def _renamed(text: str, form: str) -> str | None:
    """The nearest name that is allowed, if the rest of the form is a name's."""
    if form not in ("job name", "target name", "file name"):
        return None
    name = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-")
    return name if marks.matches(form, name) else None


def _meant(text: str, form: str) -> str | None:
    """The URL whose slashes are missing, where a URL may stand."""
    from headway.storage.open import mended_url

    url = mended_url(text) if form in ("location", "source", "weights") else None
    return None if url is None else f"{url}, or ./{text} for a folder of that name"


def _unexpanded(node: Node, text: str, path: str, to: Reading) -> Any:
    if "${env:" not in text:
        return text
    fix = f"write the value itself; ${{env:NAME}} is expanded in {WHERE_EXPANDED}"
    return to.report(f"{path}: ${{env:…}} is not expanded here", node.where, fix)


def _expand(node: Node, text: str, path: str, to: Reading) -> Any:
    missing = [name for name in _REFERENCE.findall(text) if name not in to.env]
    for name in missing:
        to.report(f"{path}: the environment variable {name} is not set", node.where, f"export {name}=…")
    rest = _REFERENCE.sub("", text)
    if "${env:" in rest:
        return to.report(f"{path}: an unfinished ${{env:…}} in '{text[:60]}'", node.where, "write ${env:NAME}")
    shell = _SHELL_VARIABLE.search(rest)
    if shell:
        what = f"{path}: {shell[0]} is not expanded"
        return to.report(what, node.where, f"write ${{env:{shell[1]}}}")
    return BAD if missing else _REFERENCE.sub(lambda found: to.env[found[1]], text)
