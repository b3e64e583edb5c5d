"""Convert a tree to a dataclass according to its annotations, and report all problems instead of the first.

Our own code, because no library reports all problems with line and column and imports this quickly:
see docs/decisions/0002-spec-validation.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from headway.core.errors import Problem
from headway.core.program import escape_placeholders
from headway.plugins import STORES, TRACKERS
from headway.plugins.registry import declare, is_path
from headway.spec import constraints, rules, units
from headway.spec.constraints import (
    NOTHING,
    Key,
    described,
    example,
    is_collection,
    is_list,
    is_mapping,
    keys_of,
    recorded_keys_of,
    union_members,
    unmarked,
)
from headway.spec.model import Accelerator, Cadence, Secret, TrackerName
from headway.spec.renamed import FormerKey, overrides, renamed_in, written
from headway.spec.rules import Node, closest_name, members

# Single values: text, numbers, booleans. A value that is not valid is reported with what to write instead.


BAD: Any = object()  # placeholder for a value that is not valid; the reason is among the problems

WHERE_EXPANDED = "data sources, outputs, export.to, init_from, python, cache.dir, image and env"
_REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_SHELL_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
_MAX_INT = 2**63  # the range of other programs that read a plan
_SWITCHES = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


@dataclass(frozen=True, slots=True)
class ValidationContext:
    """The settings of one validation, and the list of its problems."""

    problems: list[Problem]
    env: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None  # folder of the files that the document names; None: do not check that they exist
    typed: bool = True  # as users type it; False: plain JSON from `dump`

    def report(self, what: str, where: str, fix: str = "") -> Any:
        self.problems.append(Problem(what=what, where=where, fix=fix))
        return BAD


def last_key(path: str) -> str:
    return path.rpartition(".")[2]


def shown(node: Node) -> str:
    """Describe the value for an error message."""
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, tuple):
        return "a list"
    if isinstance(node.value, str):
        return f"the text '{node.value[:60]}'"
    return "nothing" if node.value is None else node.text[:60]


def wrong_type(node: Node, annotation: Any, path: str, context: ValidationContext) -> Any:
    what = f"{path} must be {described(annotation)}, not {shown(node)}"
    return context.report(what, node.where, _retyped(node, annotation, last_key(path)))


def as_words(node: Node) -> str:
    """Format a mapping or list of plain values as words of a command line: `--lr 0.1`; "" if it is nested deeper."""
    import shlex

    if isinstance(node.value, tuple):
        parts = list(node.value)
    else:
        parts = [part for name, each in members(node).items() for part in (Node(name, "", text=name), each)]
    if any(isinstance(part.value, (dict, tuple)) for part in parts):
        return ""
    return shlex.join(part.text for part in parts if part.value is not None)


def _retyped(node: Node, annotation: Any, key: str) -> str:
    """Return the line to write instead, if it can be guessed."""
    value = node.value
    if annotation is str and key.isdigit():  # an item of a list
        words = as_words(node) if isinstance(value, (dict, tuple)) else ""
        return f"write {words.replace(' ', ', ')}, each an item of its own" if words else "write text in quotes"
    if annotation is bool and isinstance(value, str) and value.lower() in _SWITCHES:
        return f"write {key}: {_SWITCHES[value.lower()]}"
    if annotation is str and isinstance(value, (int, float)):
        return f'write {key}: "{node.text}"'
    if annotation is int and isinstance(value, float) and value.is_integer():
        return f"write {key}: {int(value)}"
    return f"write it as in {key}: {example(annotation)}"


def read_bool(node: Node, path: str, context: ValidationContext) -> Any:
    return node.value if isinstance(node.value, bool) else wrong_type(node, bool, path, context)


def read_number(node: Node, kind: type, extra: tuple[object, ...], path: str, context: ValidationContext) -> Any:
    """Read a whole number or a finite number within its bounds. Sizes and durations have units."""
    unit = next((mark for mark in constraints.forms(extra) if mark in ("duration", "size")), None)
    if context.typed and unit:
        return _with_unit(node, units.parse_duration if unit == "duration" else units.parse_size, unit, path, context)
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        return wrong_type(node, kind, path, context)
    if isinstance(value, int) and abs(value) >= _MAX_INT:
        return context.report(f"{path}: {shown(node)} is too large", node.where, "write a smaller number")
    if not math.isfinite(value):  # JSON has no such number, and a plan is JSON
        return context.report(f"{path}: {shown(node)} is not a finite number", node.where, "write a finite one")
    for limit in constraints.bounds(extra):
        if not limit.holds(value):
            what = f"{path} must be {limit.words}, not {shown(node)}"
            return context.report(what, node.where, f"write {last_key(path)}: {limit.example}")
    return kind(value)


def _with_unit(node: Node, read: Any, unit: str, path: str, context: ValidationContext) -> Any:
    if isinstance(node.value, (bool, dict, tuple)) or node.value is None:
        form = constraints.FORMS[unit]
        return context.report(f"{path} must be {form.words}, not {shown(node)}", node.where, f"write {form.example}")
    value = read_form(node, read, path, context)
    if value is not BAD and value >= _MAX_INT:
        return context.report(f"{path}: {node.text[:60]} is too large", node.where, "write a smaller one")
    return value


def read_form(node: Node, read: Any, path: str, context: ValidationContext) -> Any:
    """Read a value that users type as a short text: `10m`, `T4:1`."""
    try:
        return read(node.text)
    except units.BadUnit as bad:
        return context.report(f"{path}: {bad.what}", node.where, bad.fix)


def read_text(node: Node, extra: tuple[object, ...], path: str, context: ValidationContext) -> Any:
    """Read a text. Expands `${env:NAME}` if the field is marked `env`, and refuses it otherwise."""
    text = _text_of(node, extra)
    if text is None:
        return _no_text(node, extra, path, context)
    if context.typed and not node.literal:
        text = (
            _expand(node, text, path, context)
            if constraints.EXPANDED in extra
            else _unexpanded(node, text, path, context)
        )
        if text is BAD:
            return BAD
    if node.literal and constraints.PLACEHOLDERS in extra:
        text = escape_placeholders(text)
    for form in constraints.forms(extra):
        if not constraints.matches(form, text):
            return _bad_form(node, text, form, path, context)
    trouble = _no_file(context.folder / text) if "project file" in extra and context.folder is not None else None
    if trouble:
        return context.report(f"{path}: {trouble}", node.where, "name a file, relative to the job file")
    return text


def _no_file(path: Path) -> str | None:
    """Return why a path is not a file; None if it is one."""
    try:
        if path.is_file():
            return None
        return f"{path} is a folder" if path.is_dir() else f"there is no file {path}"
    except OSError as error:  # the name is too long, or its folder is not accessible
        return f"{str(path)[:200]} cannot be read: {error.strerror}"


def _text_of(node: Node, extra: tuple[object, ...]) -> str | None:
    if isinstance(node.value, str):
        return node.value
    as_typed = node.loose or (constraints.AS_TYPED in extra and not isinstance(node.value, (dict, tuple)))
    return node.text if as_typed and node.value is not None else None


def _no_text(node: Node, extra: tuple[object, ...], path: str, context: ValidationContext) -> Any:
    if "secret" in extra:  # the value may be the secret itself: do not show it in a message
        what = f"{path} must be a reference to a secret"
        return context.report(what, node.where, f"write {constraints.SECRET_FORMS}")
    return wrong_type(node, str, path, context)


def _bad_form(node: Node, text: str, form: str, path: str, context: ValidationContext) -> Any:
    if form == "secret":
        variable = last_key(path) if "secrets." in path else "NAME"
        what = f"{path} must be a reference to a secret, not the secret itself"
        fix = f"put the value into an environment variable and write env:{variable} (or {constraints.SECRET_FORMS})"
        return context.report(what, node.where, fix)
    wanted = constraints.FORMS[form]
    scheme = constraints.scheme_of(text) if form in constraints.LOCATIONS else ""
    if scheme in STORES.hints:
        return context.report(f"{path}: no store for {scheme}:// is installed", node.where, STORES.hints[scheme])
    fix = f"write {_renamed(text, form) or _url_suggestion(text, form) or wanted.example}"
    return context.report(f"{path} must be {wanted.words}, not '{text[:60]}'", node.where, fix)


def _renamed(text: str, form: str) -> str | None:
    """Return the most similar name that the form allows; None if the form is not a name."""
    if form not in ("job name", "target name", "file name"):
        return None
    name = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-")
    return name if constraints.matches(form, name) else None


def _url_suggestion(text: str, form: str) -> str | None:
    """Return the URL with its missing slashes added, if the form allows a URL."""
    from headway.storage import suggest_url

    url = suggest_url(text) if form in ("location", "source", "weights") else None
    return None if url is None else f"{url}, or ./{text} for a folder of that name"


def _unexpanded(node: Node, text: str, path: str, context: ValidationContext) -> Any:
    if "${env:" not in text:
        return text
    fix = f"write the value itself; ${{env:NAME}} is expanded in {WHERE_EXPANDED}"
    return context.report(f"{path}: ${{env:…}} is not expanded here", node.where, fix)


def _expand(node: Node, text: str, path: str, context: ValidationContext) -> Any:
    missing = [name for name in _REFERENCE.findall(text) if name not in context.env]
    for name in missing:
        context.report(f"{path}: the environment variable {name} is not set", node.where, f"export {name}=…")
    rest = _REFERENCE.sub("", text)
    if "${env:" in rest:
        return context.report(f"{path}: an unfinished ${{env:…}} in '{text[:60]}'", node.where, "write ${env:NAME}")
    shell = _SHELL_VARIABLE.search(rest)
    if shell:
        what = f"{path}: {shell[0]} is not expanded"
        return context.report(what, node.where, f"write ${{env:{shell[1]}}}")
    return BAD if missing else _REFERENCE.sub(lambda found: context.env[found[1]], text)


T = TypeVar("T")
FieldReader = Callable[[Node | None, str], Any]  # (node, path) -> value or BAD; no node: the key is left out

MOST_UNKNOWN = 20  # unknown keys of one mapping that are reported one by one

# Dataclasses that users type as a short text.
_TEXT_FORMS: dict[type, Callable[[str], Any]] = {Accelerator: units.parse_accelerator, Cadence: units.parse_cadence}


def read_dataclass(
    node: Node,
    cls: type[T],
    problems: list[Problem],
    *,
    path: str = "",
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> T | None:
    """Convert the tree to a `cls`, or return None and add the reasons to `problems`."""
    value = Reader(ValidationContext(problems, env or {}, folder)).dataclass(node, cls, path)
    return None if value is BAD else value


def _instead(node: Node, former: FormerKey, path: str) -> str:
    """Return what to write instead of a former spelling."""
    if isinstance(node.value, (dict, tuple)) or not former.applies(node.value):
        return f"write {former.new_name}: …"
    today = former.translate(node.value)
    return former.instead(node.value) or f"write {overrides(today, path) if node.loose else written(today)}"


class Reader:
    """Convert nodes to values. A value that is not valid becomes BAD, and its siblings are still read."""

    def __init__(self, context: ValidationContext) -> None:
        self.context = context

    def dataclass(
        self, node: Node, cls: type[Any], path: str = "", own: Mapping[str, FieldReader] | None = None
    ) -> Any:
        """Convert the mapping to a `cls`; keys in `own` are read by those readers instead."""
        if not isinstance(node.value, dict):
            return self._no_mapping(node, cls, path)
        if self.context.typed:
            node = self._refuse_former_keys(node, cls, path)
        keys = keys_of(cls) if self.context.typed else recorded_keys_of(cls)
        meant = self._unknown_keys(members(node), keys, path)
        if self.context.typed:
            self._exclusive_keys(node, cls, path, meant)
        values: dict[str, Any] = {}
        for key in keys.values():
            if key.required and key.name in meant:
                values[key.field.name] = BAD
            else:
                values[key.field.name] = self._member(node, key, path, (own or {}).get(key.name))
        return BAD if any(value is BAD for value in values.values()) else cls(**values)

    def _no_mapping(self, node: Node, cls: type[Any], path: str) -> Any:
        what = f"{path or 'the document'} must be a mapping of keys and values, not {shown(node)}"
        first = next(iter(keys_of(cls)), "key")
        return self.context.report(what, node.where, f"write it as in {{{first}: …}}")

    def _member(self, node: Node, key: Key, path: str, own: FieldReader | None) -> Any:
        member = members(node).get(key.name)
        here = f"{path}.{key.name}" if path else key.name
        if member is not None and member.value is None and is_collection(key.type):
            member = None  # `data:` with nothing under it
        if own is not None:
            return own(member, here)
        if member is not None:
            return self.value(member, key.type, here)
        if key.required:
            return self.context.report(f"{here} is missing", node.where, f"add {key.name}: {described(key.type)}")
        return key.default()

    def value(self, node: Node, annotation: Any, path: str) -> Any:
        """Convert the node to the type of the annotation."""
        kind, extra = unmarked(annotation)
        if len(union_members(kind)) > 1:
            return self._union(node, annotation, path)
        if kind is Any:
            return self._anything(node, path)
        if get_origin(kind) is Literal:
            return self._choice(node, kind, path)
        if is_list(kind):
            return self._list(self._split(node, path) if constraints.WORDS in extra else node, kind, path)
        if is_mapping(kind):
            return self._mapping(node, kind, path)
        if is_dataclass(kind):
            return self._nested(node, kind, path)  # type: ignore[arg-type]
        if constraints.TRACKER in extra:
            return self._tracker(node, path)
        if kind is bool:
            return read_bool(node, path, self.context)
        if kind in (int, float):
            return read_number(node, kind, extra, path, self.context)
        assert kind is str, f"{path}: a document cannot hold a {annotation}"
        return read_text(node, extra, path, self.context)

    def _union(self, node: Node, annotation: Any, path: str) -> Any:
        every = union_members(unmarked(annotation)[0])
        something = [member for member in every if member is not NOTHING]
        if node.value is None and NOTHING in every:
            return None
        if len(something) == 1:
            return self.value(node, something[0], path)
        for member in something:
            trial = Reader(ValidationContext([], self.context.env, self.context.folder, self.context.typed))
            value = trial.value(node, member, path)
            if value is not BAD:
                return value
        return wrong_type(node, annotation, path, self.context)

    def _nested(self, node: Node, cls: type[Any], path: str) -> Any:
        if self.context.typed and cls in _TEXT_FORMS:
            if isinstance(node.value, (dict, tuple)) and not node.loose:
                return wrong_type(node, cls, path, self.context)
            return read_form(node, _TEXT_FORMS[cls], path, self.context)
        if self.context.typed and cls is Secret and not isinstance(node.value, dict):
            ref = read_text(node, ("secret",), path, self.context)
            return BAD if ref is BAD else Secret(ref=ref)
        return self.dataclass(node, cls, path)

    def _choice(self, node: Node, kind: Any, path: str) -> Any:
        choices = get_args(kind)
        for choice in choices:
            if node.value == choice and type(node.value) is type(choice):
                return choice
            if node.loose and node.text == str(choice):
                return choice
        near = closest_name(node.text, [str(choice) for choice in choices])
        fix = f"did you mean {near}?" if near else f"write {described(kind)}"
        return self.context.report(f"{path} must be {described(kind)}, not {shown(node)}", node.where, fix)

    def _tracker(self, node: Node, path: str) -> Any:
        """Read the name of a tracker. A record's is not looked up: it may be installed where the job trains alone."""
        name = read_text(node, (), path, self.context)
        if name is BAD or not self.context.typed:
            return name
        if is_path(name):
            return self.declared(name, node)
        if name in TRACKERS:
            return name
        fix = TRACKERS.suggest(name)
        return self.context.report(f"{path} must be {described(TrackerName)}, not {shown(node)}", node.where, fix)

    def declared(self, path: str, node: Node) -> Any:
        """Allow a class that the job file names by path; the job file's folder is where it is imported from."""
        if self.context.folder is not None:
            declare(path, self.context.folder, remember=True)
        return path

    def _list(self, node: Node, kind: Any, path: str) -> Any:
        inside = get_args(kind)
        if not isinstance(node.value, tuple):
            fix = f"write {last_key(path)}: [{self._as_item(node, inside[0])}]"
            return self.context.report(f"{path} must be a list, not {shown(node)}", node.where, fix)
        of_any_length = get_origin(kind) is list or inside[-1] is Ellipsis
        if not of_any_length and len(inside) != len(node.value):
            what = f"{path} must have {len(inside)} entries, not {len(node.value)}"
            return self.context.report(what, node.where, f"write {len(inside)} of them")
        types = inside[:1] * len(node.value) if of_any_length else inside
        items = [self.value(item, t, f"{path}.{i}") for i, (item, t) in enumerate(zip(node.value, types, strict=True))]
        return BAD if any(item is BAD for item in items) else get_origin(kind)(items)

    def _split(self, node: Node, path: str) -> Node:
        """Split one text as a shell would: `args: --epochs 3 --name "two words"`."""
        if isinstance(node.value, tuple) or node.value is None:
            return node
        import shlex

        if isinstance(node.value, dict):
            fix = f"write {last_key(path)}: {as_words(node) or '--name value'}"
            self.context.report(f"{path} must be a list or one text, not a mapping", node.where, fix)
            return replace(node, value=())

        try:
            words = shlex.split(node.text if node.loose or not isinstance(node.value, str) else node.value)
        except ValueError as error:
            what = f"{path}: {str(error).lower()} in '{node.text[:60]}'"
            fix = f"close the quotation, or write {last_key(path)} as a list: [--name, value]"
            self.context.report(what, node.where, fix)
            return replace(node, value=())
        return replace(node, value=tuple(Node(word, node.where, text=word) for word in words))

    def _as_item(self, node: Node, inside: Any) -> str:
        """Format a single value as an item of a list."""
        if isinstance(node.value, dict):
            return "{…}"
        text = node.text[:60].strip("[]")
        first = next(iter(keys_of(inside))) if is_dataclass(inside) else ""
        return f"{{{first}: {text}}}" if first else text

    def _mapping(self, node: Node, kind: Any, path: str) -> Any:
        if not isinstance(node.value, dict):
            return wrong_type(node, kind, path, self.context)
        key_type, value_type = get_args(kind)
        good: dict[str, Any] = {}
        bad = False
        for name, member in node.value.items():
            value = self.value(member, value_type, f"{path}.{name}")
            if value is BAD or not self.key_fits(name, member, key_type, path):
                bad = True
            else:
                good[name] = value
        return BAD if bad else good

    def key_fits(self, name: str, member: Node, key_type: Any, path: str) -> bool:
        for form in constraints.forms(unmarked(key_type)[1]):
            if not constraints.matches(form, name):
                wanted = constraints.FORMS[form]
                what = f"{path}: '{name[:60]}' is not {wanted.words}"
                self.context.report(what, member.key_or_value, f"write it as in {wanted.example}")
                return False
        return True

    def _anything(self, node: Node, path: str) -> Any:
        """Read plain data of any shape, for settings without a schema."""
        if isinstance(node.value, dict):
            return self._mapping(node, dict[str, Any], path)
        if isinstance(node.value, tuple):
            return self._list(node, list[Any], path)
        if isinstance(node.value, str):
            return read_text(node, (), path, self.context)
        if isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
            return read_number(node, type(node.value), (), path, self.context)
        return node.value

    def _refuse_former_keys(self, node: Node, cls: type[Any], path: str) -> Node:
        """Report keys with a former spelling or meaning, and return the mapping without them."""
        table, given, keys = renamed_in(cls), members(node), keys_of(cls)
        former = {name for name in given if name in table}
        former -= {name for name in former if name in keys and not table[name].applies(given[name].value)}
        for name in sorted(former):
            what = f"{path}.{name}{table[name].change(given[name].value)}"
            self.context.report(what, given[name].key_or_value, _instead(given[name], table[name], path))
        return replace(node, value={name: given[name] for name in given if name not in former}) if former else node

    def _unknown_keys(self, members: dict[str, Node], keys: Mapping[str, Key], path: str) -> set[str]:
        """Report unknown keys. Returns the keys that were probably meant, which are not to be reported as missing."""
        meant: set[str] = set()
        unknown = [name for name in members if name not in keys]
        for name in unknown[:MOST_UNKNOWN]:
            near = closest_name(name, [key for key in keys if key not in members]) or closest_name(name, keys)
            meant.update([near] if near else [])
            fix = f"did you mean {near}?" if near else f"remove it; the keys are {', '.join(keys)}"
            what = f"unknown key '{name[:60]}'" + (f" in {path}" if path else "")
            self.context.report(what, members[name].key_or_value, fix)
        if len(unknown) > MOST_UNKNOWN:
            more = members[unknown[MOST_UNKNOWN]]
            self.context.report(f"{len(unknown) - MOST_UNKNOWN} more unknown keys", more.key_or_value, "remove them")
        return meant

    def _exclusive_keys(self, node: Node, cls: type[Any], path: str, meant: set[str]) -> None:
        given = [name for name, member in members(node).items() if member.value is not None]
        for what, name, fix in rules.conflicts(cls, [*given, *meant]):
            where = members(node)[name].key_or_value if name in given else node.where
            self.context.report(f"{path}: {what}" if path else what, where, fix)
