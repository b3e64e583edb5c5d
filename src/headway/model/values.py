"""Values of a declared type: checked, converted from text, described as a JSON schema, and made up for measurements."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headway.model.types import Column, Number, Row, Tensor, Text

_MAX_ELEMENTS: Final = 10_000_000  # of a tensor


def parse(declared: Any, value: Any) -> Any:
    """Check a plain JSON value and convert it to what `predict` receives. Raises ValueError for who sent it."""
    if isinstance(declared, Text):
        return _text(value)
    if isinstance(declared, Number):
        return _bounded(declared, value)
    if isinstance(declared, Row):
        return _row(declared, value)
    return _nested(value, tuple(declared.shape), [0]) if isinstance(declared, Tensor) else value


def from_text(declared: Any, value: Any) -> Any:
    """Convert a table's cell or a word of the command line to the value of a request.

    A text that cannot be converted stays as it is, so that `parse` refuses it.
    """
    if isinstance(declared, Number):
        return _converted(value)
    if isinstance(declared, Row) and isinstance(value, Mapping):
        numbers = {name for name, column in declared.typed.items() if column in (float, int)}
        return {name: _converted(cell) if name in numbers else cell for name, cell in value.items()}
    if isinstance(declared, Tensor) and isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def schema(declared: Any) -> dict[str, Any]:
    """Return the JSON schema of a request's value."""
    if isinstance(declared, Number):
        bounds = {"minimum": declared.low, "maximum": declared.high}
        return {"type": "number", **{name: bound for name, bound in bounds.items() if bound is not None}}
    if isinstance(declared, Row):
        return {
            "type": "object",
            "required": list(declared.typed),
            "properties": {name: _column_schema(column) for name, column in declared.typed.items()},
            "additionalProperties": False,
        }
    if isinstance(declared, Tensor):
        made: dict[str, Any] = {"type": "number"}
        for size in reversed(declared.shape):
            made = {"type": "array", "items": made, "minItems": size or 1, **({"maxItems": size} if size else {})}
        return made
    return {"type": "string"}


def example(declared: Any) -> Any:
    """Return a value as `predict` would receive it; None for pictures and sound."""
    if isinstance(declared, Number):
        return next((bound for bound in (declared.low, declared.high) if bound is not None), 1.0)
    if isinstance(declared, Row):
        samples: dict[Any, Any] = {float: 1.0, int: 1.0, str: "a word"}
        return {
            name: samples.get(column, "") if isinstance(column, type) else column[0]
            for name, column in declared.typed.items()
        }
    if isinstance(declared, Tensor):
        made: Any = 0.5
        for size in reversed(declared.shape):
            made = [made] * (size or 2)
        return made
    return "a man in a blue shirt" if isinstance(declared, Text) else None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a text is needed, not {_name(value)}")
    return value


def _bounded(declared: Number, value: Any) -> float:
    number = _number(value)
    if (declared.low is not None and number < declared.low) or (declared.high is not None and number > declared.high):
        raise ValueError(f"{number:g} is not between {_bound(declared.low)} and {_bound(declared.high)}")
    return number


def _row(declared: Row, value: Any) -> dict[str, Any]:
    names = ", ".join(declared.typed)
    if not isinstance(value, Mapping):
        raise ValueError(f"an object with the columns {names} is needed, not {_name(value)}")
    unknown = sorted(str(name) for name in set(value) - set(declared.typed))
    missing = [name for name in declared.typed if name not in value]
    if unknown or missing:
        what = f"no column {unknown[0][:40]!r}" if unknown else f"{missing[0]!r} is missing"
        raise ValueError(f"{what}: the columns are {names}")
    return {name: _cell(name, value[name], column) for name, column in declared.typed.items()}


def _converted(text: Any) -> Any:
    try:
        return float(text) if isinstance(text, str) else text
    except ValueError:
        return text


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        shown = f"{value[:40]!r}" if isinstance(value, str) else _name(value)
        raise ValueError(f"a number is needed, not {shown}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("the number is too large") from None
    if not math.isfinite(number):
        raise ValueError("the number is not finite")
    return number


def _cell(name: str, value: Any, column: Column) -> Any:
    try:
        if column in (float, int):
            return _number(value)
        if not isinstance(value, str):
            raise ValueError(f"a text is needed, not {_name(value)}")
        if not isinstance(column, type) and value not in column:
            raise ValueError(f"{value[:40]!r} is not one of {', '.join(column)}")
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return value


def _column_schema(column: Column) -> dict[str, Any]:
    if column in (float, int):
        return {"type": "number"}
    return {"type": "string"} if isinstance(column, type) else {"enum": list(column)}


def _nested(value: Any, shape: Sequence[int | None], seen: list[int]) -> Any:
    if not shape:
        seen[0] += 1
        if seen[0] > _MAX_ELEMENTS:
            raise ValueError(f"more than {_MAX_ELEMENTS:,} numbers")
        return _number(value)
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"a list is needed, not {_name(value)}")
    if shape[0] is not None and len(value) != shape[0]:
        raise ValueError(f"a list of {shape[0]} is needed, not of {len(value)}")
    rows = [_nested(each, shape[1:], seen) for each in value]
    if len(shape) > 1 and len({len(row) for row in rows}) > 1:
        raise ValueError("the lists differ in length")
    return rows


def _name(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def _bound(value: float | None) -> str:
    return "any number" if value is None else f"{value:g}"
