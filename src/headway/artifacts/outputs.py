"""What a model's `predict` returned, checked against its declared outputs: as plain JSON, as text, and as a score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from headway.artifacts.media import data_url, to_png
from headway.model import Boxes, Caption, Classes, Labels, Model, Number, Ordinal, Picture, Tensor, Text
from headway.model.code import ModelFailed
from headway.model.values import parse


def answers_of(model: Model, returned: Any, count: int) -> list[dict[str, Any]]:
    """Return one mapping per sample from output names to values. Raises ModelFailed for anything else."""
    name = type(model).__name__
    rows = list(returned) if isinstance(returned, Sequence) or hasattr(returned, "__len__") else None
    if rows is None or len(rows) != count:
        got = type(returned).__name__ if rows is None else f"{len(rows)} answers"
        raise ModelFailed(f"{name}.predict returned {got} for a batch of {count}", fix="return a list, one per sample")
    only = next(iter(model.outputs)) if len(model.outputs) == 1 else None
    made = []
    for row in rows:
        answer = row if isinstance(row, Mapping) and set(row) >= set(model.outputs) else {only: row} if only else row
        if not isinstance(answer, Mapping) or not set(answer) >= set(model.outputs):
            has = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
            raise ModelFailed(
                f"{name}.predict answered with {has}, not with {', '.join(model.outputs)}",
                fix="return a mapping with every output for each sample",
            )
        made.append({each: answer[each] for each in model.outputs})
    return made


def rendered(model: Model, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer as plain JSON, with `text` for people."""
    plain = {}
    for name, declared in model.outputs.items():
        try:
            plain[name] = plain_output(answer[name], declared)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise ModelFailed(
                f"{type(model).__name__}.predict gave an output {name!r} that is not of the type "
                f"{type(declared).__name__}: {error}"
            ) from None
    texts = [text_output(plain[name], declared) for name, declared in model.outputs.items()]
    named = [f"{name} {text}" for name, text in zip(plain, texts, strict=True)]
    return {
        "text": texts[0] if len(texts) == 1 else ", ".join(named),
        **{k: v for k, v in plain.items() if k != "text"},
    }


def plain_output(value: Any, declared: Any) -> Any:
    """Return an output's value as plain JSON. Raises ValueError and the like if it is not of that type."""
    value = value.tolist() if hasattr(value, "tolist") and not isinstance(declared, Picture) else value
    if isinstance(declared, Number):
        return _finite(value)
    if isinstance(declared, Text):
        return str(value)
    if isinstance(declared, Classes):
        chances = shares(value, list(declared.names))
        best = max(chances, key=lambda name: chances[name])
        top = sorted(chances.items(), key=lambda item: -item[1])[: declared.top]
        return {"label": best, "probabilities": {name: round(share, 6) for name, share in top}}
    if isinstance(declared, Ordinal):
        return _ordinal(value, declared)
    if isinstance(declared, Labels):
        return {name: round(_finite(share), 6) for name, share in shares(value, list(declared.names)).items()}
    if isinstance(declared, Caption):
        return _caption(value)
    if isinstance(declared, Picture):
        return data_url(value if isinstance(value, bytes) else to_png(value))
    if isinstance(declared, Boxes):
        return [_box(each) for each in value]
    if isinstance(declared, Tensor):
        return parse(declared, value) if declared.shape else value
    return value


def text_output(plain: Any, declared: Any) -> str:
    """Return the words for people."""
    if isinstance(declared, Number):
        return f"{plain:.6g}" + (f" {declared.unit}" if declared.unit else "")
    if isinstance(declared, Classes):
        return f"{plain['label']} ({100 * plain['probabilities'][plain['label']]:.0f} %)"
    if isinstance(declared, Ordinal):
        return str(plain["grade"]) + (f" (expected {plain['expected']:.1f})" if "expected" in plain else "")
    if isinstance(declared, Labels):
        return ", ".join(f"{name} {100 * score:.0f} %" for name, score in plain.items())
    if isinstance(declared, Caption):
        return str(plain["text"])
    if isinstance(declared, Picture):
        return "a picture"
    if isinstance(declared, Boxes):
        return f"{len(plain)} boxes" if len(plain) != 1 else "1 box"
    return str(plain) if not isinstance(declared, Tensor) else "numbers"


def shares(value: Any, names: Sequence[Any]) -> dict[Any, float]:
    """Return a share per name, from a mapping, a sequence in order, or one name."""
    if isinstance(value, Mapping):
        found = {name: _finite(value[name]) for name in names if name in value}
        if len(found) != len(value):
            raise ValueError(f"{next(name for name in value if name not in names)!r} is not one of {list(names)}")
        return found
    if isinstance(value, list | tuple):
        if len(value) != len(names):
            raise ValueError(f"{len(value)} numbers for {len(names)} names")
        return dict(zip(names, map(_finite, value), strict=True))
    if value not in names:
        raise ValueError(f"{value!r} is not one of {list(names)}")
    return {name: float(name == value) for name in names}


def _ordinal(value: Any, declared: Ordinal) -> dict[str, Any]:
    if not isinstance(value, Mapping | list | tuple):
        grade = round(_finite(value))
        if grade not in declared.grades:
            raise ValueError(f"{grade} is not between {declared.low} and {declared.high}")
        return {"grade": grade}
    keys = {str(grade): grade for grade in declared.grades}
    given = {str(name): share for name, share in value.items()} if isinstance(value, Mapping) else value
    chances = {keys[name]: share for name, share in shares(given, list(keys)).items()}
    expected = sum(grade * share for grade, share in chances.items())
    return {
        "grade": max(chances, key=lambda grade: chances[grade]),
        "expected": round(expected, 3),
        "probabilities": {str(grade): round(share, 6) for grade, share in chances.items()},
    }


def _caption(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"text": value}
    words = [
        {"word": str(word), "attention": attention.tolist() if hasattr(attention, "tolist") else attention}
        for word, attention in value
    ]
    return {"text": " ".join(each["word"] for each in words), "words": words}


def _box(value: Mapping[str, Any]) -> dict[str, Any]:
    box = [round(_finite(number), 2) for number in value["box"]]
    if len(box) != 4:
        raise ValueError("a box is [left, top, right, bottom]")
    score = value.get("score")
    return {"box": box, "label": str(value.get("label", "")), **({} if score is None else {"score": _finite(score)})}


def _finite(value: Any) -> float:
    number = float(value.item() if hasattr(value, "item") else value)
    if not math.isfinite(number):
        raise ValueError("it is not finite")
    return number
