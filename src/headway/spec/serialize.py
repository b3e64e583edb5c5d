"""A job as plain JSON and back: numbers for durations and sizes, `as_` written as `as`. Goes into plan.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, TypeVar

from headway.core.errors import BadPlan, Problem
from headway.spec.document import tree_of
from headway.spec.fields import recorded_keys_of
from headway.spec.model import Job
from headway.spec.renamed import current
from headway.spec.validate import BAD, Reader, ValidationContext

T = TypeVar("T")


def dump(job: Job) -> dict[str, Any]:
    """All of it, defaults included, without where the file lies. Two equal jobs give equal dumps."""
    plain = to_plain(job)
    assert isinstance(plain, dict)
    return plain


def undump(plain: Mapping[str, Any], *, where: str = "job") -> Job:
    """The job that `dump` wrote. Nothing is expanded and no file is looked for: that was done when it was loaded."""
    return from_plain(plain, Job, where=where)


def to_plain(value: Any) -> Any:
    """Any dataclass that a job file can hold, as JSON would give it back."""
    if is_dataclass(value) and not isinstance(value, type):
        kept = [(key, getattr(value, key.field.name)) for key in recorded_keys_of(type(value)).values()]
        return {key.name: to_plain(member) for key, member in kept if not key.recorded or member != key.default()}
    if isinstance(value, Mapping):
        return {str(name): to_plain(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def from_plain(plain: Mapping[str, Any], cls: type[T], *, where: str = "plan") -> T:
    """What `to_plain` made of a `cls`, in this version or a former one. Anything else is a BadPlan.

    Such as a recipe's config or a target's options.
    """
    problems: list[Problem] = []
    try:
        value = Reader(ValidationContext(problems, typed=False)).dataclass(tree_of(current(cls, plain), where), cls)
    except RecursionError:
        raise BadPlan("nested too deep", where=where, fix="headway plan --out plan.json") from None
    if value is BAD or problems:
        raise BadPlan("; ".join(f"{each.where}: {each.what}" for each in problems), fix="headway plan --out plan.json")
    return value  # type: ignore[no-any-return]
