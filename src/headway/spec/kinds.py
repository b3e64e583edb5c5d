"""The types a dataclass may use in a document, told apart and named for people. Standard library only."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from headway.spec import marks
from headway.spec.model import Accelerator, Cadence, Secret

NOTHING = type(None)
_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Any: "anything"}
_TEXT_FORMS = {
    Accelerator: "an accelerator such as T4:1",
    Cadence: "how often: 10m, 500 steps or 5 epochs",
    Secret: "a reference to a secret",
}


class Key(NamedTuple):
    """One key of a mapping that is read as a dataclass."""

    name: str  # as it is typed: `as` for the field `as_`
    field: Field[Any]
    type: Any

    @property
    def required(self) -> bool:
        return self.field.default is MISSING and self.field.default_factory is MISSING

    def default(self) -> Any:
        if self.field.default_factory is not MISSING:
            return self.field.default_factory()
        return self.field.default


_known_keys: dict[type[Any], dict[str, Key]] = {}  # resolving annotations is slow, and classes do not change


def keys_of(cls: Any) -> dict[str, Key]:
    """The keys a mapping may have where the dataclass `cls` is expected."""
    if cls not in _known_keys:
        hints = get_type_hints(cls, include_extras=True)
        found = [each for each in fields(cls) if each.init and each.metadata.get("key", True)]
        keys = [Key(each.name.rstrip("_"), each, hints[each.name]) for each in found]
        _known_keys[cls] = {key.name: key for key in keys}
    return _known_keys[cls]


def unmarked(annotation: Any) -> tuple[Any, tuple[object, ...]]:
    """The type and its marks."""
    if get_origin(annotation) is Annotated:
        return get_args(annotation)[0], annotation.__metadata__
    return annotation, ()


def union_members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; of anything else, itself."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def is_list(annotation: Any) -> bool:
    return get_origin(annotation) in (tuple, list)


def is_mapping(annotation: Any) -> bool:
    return get_origin(annotation) in (dict, Mapping)


def is_collection(annotation: Any) -> bool:
    """Something whose empty form and null mean the same: left out."""
    return is_list(annotation) or is_mapping(annotation) or is_dataclass(annotation)


def described(annotation: Any) -> str:
    """What must be written, in words: `a whole number, at least 1, or 'auto'`."""
    kind, extra = unmarked(annotation)
    members = [member for member in union_members(kind) if member is not NOTHING]
    if len(members) > 1:
        return ", or ".join(map(described, members))
    if members != [kind]:
        return described(members[0])
    if get_origin(kind) is Literal:
        return " or ".join(f"'{choice}'" if isinstance(choice, str) else str(choice) for choice in get_args(kind))
    if is_list(kind):
        return "a list"
    named = [marks.FORMS[mark].words for mark in marks.forms(extra)]
    limits = [bound.words for bound in marks.bounds(extra)]
    name = named[0] if named else _NAMES.get(kind) or _TEXT_FORMS.get(kind, "a mapping of keys and values")
    return " and ".join([f"{name}, {limits[0]}" if limits else name, *limits[1:]])


def example(annotation: Any) -> str:
    """Something that could be written."""
    kind, extra = unmarked(annotation)
    members = [member for member in union_members(kind) if member is not NOTHING]
    if len(members) > 1:
        return " or ".join(map(example, members))
    if get_origin(members[0]) is Literal:
        return str(get_args(members[0])[0])
    if is_list(members[0]):
        return "[…]"
    limits = [bound.example for bound in marks.bounds(extra)]
    simple = {bool: "true", int: "1", float: "0.5", str: "text", Accelerator: "T4:1", Cadence: "10m"}
    return limits[0] if limits else simple.get(members[0], "{…}")
