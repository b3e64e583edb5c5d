"""From contenders to one plain record: metrics with intervals, differences to the first run, settings, curves.

Intervals are percentiles of a bootstrap over inputs (seeded). Where two runs were measured on the same inputs, the
difference is drawn on the same inputs each time, which sees differences that lie within both intervals. What an
interval does not see is the seed of the training: for that, train again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from headway.chart import thinned
from headway.compare.contender import Contender
from headway.errors import BadInput

_POINTS: Final = 60  # of a curve
_ABSENT: Final = "–"


def compare(contenders: Sequence[Contender], *, resamples: int = 1000, level: float = 0.95) -> dict[str, Any]:
    """All that can be said of two or more runs. The first one is what the others are compared with."""
    if len(contenders) < 2:
        raise BadInput("one run cannot be compared", fix="headway compare RUN RUN…")
    return {
        "runs": [_about(contender) for contender in contenders],
        "metrics": {
            name: [_value(contender, contenders[0], name, resamples, level) for contender in contenders]
            for name in _shared([contender.metrics for contender in contenders])
        },
        "settings": settings(contenders),
        "curves": {
            name: [_thin(contender.curves.get(name, [])) for contender in contenders]
            for name in _shared([contender.curves for contender in contenders])
        },
        "notes": _notes(contenders),
    }


def settings(contenders: Sequence[Contender]) -> dict[str, list[Any]]:
    """What was not set alike, by dotted key."""
    keys = sorted({key for contender in contenders for key in contender.settings})
    rows = {key: [contender.settings.get(key, _ABSENT) for contender in contenders] for key in keys}
    return {key: values for key, values in rows.items() if any(value != values[0] for value in values)}


def _about(contender: Contender) -> dict[str, Any]:
    names = ("name", "url", "recipe", "measured", "steps", "seconds")
    return {name: getattr(contender, name) for name in names}


def _shared(each: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names that any has, in the order in which they first come."""
    return list(dict.fromkeys(name for names in each for name in names))


def _value(contender: Contender, first: Contender, name: str, resamples: int, level: float) -> dict[str, Any]:
    found: dict[str, Any] = {"value": contender.metrics.get(name)}
    mine, theirs = contender.samples.get(name), first.samples.get(name)
    if mine is None:
        return found
    from headway.score.bootstrap import difference, interval
    from headway.score.samples import size, statistic

    own = interval(statistic(mine), size(mine), resamples=resamples, level=level)
    found |= {"low": own.low, "high": own.high, "level": level}
    if contender is not first and theirs is not None and paired(contender, first) and size(mine) == size(theirs):
        gap = difference(statistic(theirs), statistic(mine), size(mine), resamples=resamples, level=level)
        found["difference"] = asdict(gap)
    return found


def paired(one: Contender, other: Contender) -> bool:
    """Whether both were measured on the very same inputs."""
    return one.measured == other.measured and bool(one.samples) and bool(other.samples)


def _thin(points: Sequence[tuple[float, float]]) -> list[list[float]]:
    return [[round(x, 2), float(f"{y:.6g}")] for x, y in thinned(points, _POINTS)]


def _notes(contenders: Sequence[Contender]) -> list[str]:
    notes = [
        f"{contender.name} has no intervals: headway eval {contender.name}"
        for contender in contenders
        if not contender.samples
    ]
    if len({contender.measured for contender in contenders}) > 1:
        notes.append("not all were measured on the same inputs: differences are not paired, and may be the data's")
    if len({contender.recipe for contender in contenders}) > 1:
        notes.append("they are of different recipes: metrics of one name may not mean the same")
    return notes
