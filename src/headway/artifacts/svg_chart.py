"""Line charts as SVG text: no library, no script, for light and dark pages. Any history gives less than 40 kB."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final

Point = tuple[float, float]

_WIDTH, _HEIGHT = 560, 240
_LEFT, _TOP, _BOTTOM = 46, 12, 30  # margins for the axis labels; the right one depends on the lines' names
_MAX_POINTS: Final = 300
_COLOURS: Final = 4  # CSS classes line0 … line3 in the style sheet
_LABEL_SPACING: Final = 15
_SMALLEST: Final = 1e-290  # the smallest span that can be divided into ticks without underflow


@dataclass(frozen=True, slots=True)
class Line:
    """One series. A noisy one is drawn faintly, with its running mean on top."""

    name: str
    points: Sequence[Point]
    noisy: bool = False


def chart(title: str, lines: Sequence[Line], *, x_name: str = "step", floor: float | None = None) -> str:
    """Draw all lines on shared axes. `floor` is the start of the vertical axis; by default a little below the data."""
    shown = [Line(line.name, downsample(_finite(line.points)), line.noisy) for line in lines]
    shown = [line for line in shown if line.points]
    if not shown:
        return ""
    frame = _Frame.around([point for line in shown for point in line.points], floor, _room(shown))
    body = [*_axes(frame, x_name), *_drawn(frame, shown)]
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(body)}</svg>"
    )


def downsample(points: Sequence[Point], max_points: int = _MAX_POINTS) -> list[Point]:
    """Reduce to at most `max_points` points by averaging neighbours; the last point is kept."""
    if len(points) <= max_points:
        return list(points)
    edges = [round(n * (len(points) - 1) / (max_points - 1)) for n in range(max_points)]
    bins = [points[start:stop] for start, stop in pairwise(edges)]
    means = [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in bins if part]
    return [*means, points[-1]]


def smoothed(points: Sequence[Point], reach: float = 0.02) -> list[Point]:
    """Exponential moving average over about `reach` of the points, corrected for the bias towards the first."""
    keep = 1 - 1 / max(1.0, reach * len(points))
    total = weight = 0.0
    smooth = []
    for x, y in points:
        total, weight = keep * total + y, keep * weight + 1
        smooth.append((x, total / weight))
    return smooth


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers that cover the range from `low` to `high`."""
    span = (high - low) or abs(high) or 1.0
    raw = max(span, _SMALLEST) / about
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    count = math.ceil(high / step - 1e-9) - first
    return [round((first + n) * step, 12) for n in range(max(1, count) + 1)]


@dataclass(frozen=True, slots=True)
class _Frame:
    """Transforms data coordinates to image coordinates."""

    across: list[float]
    up: list[float]
    right: float  # end of the horizontal axis: the last data point, not the next round number
    end: float  # its x coordinate in the image

    @classmethod
    def around(cls, points: Sequence[Point], floor: float | None, room: float) -> _Frame:
        xs, ys = [x for x, _ in points], [y for _, y in points]
        low = min(ys) if floor is None else min(floor, *ys)
        right = max(xs)
        across = [tick for tick in ticks(min(0.0, *xs), right) if tick <= right]
        return cls(across, ticks(low, max(ys)), right, _WIDTH - room)

    def x(self, value: float) -> float:
        span = (self.right - self.across[0]) or 1.0
        return _LEFT + (value - self.across[0]) / span * (self.end - _LEFT)

    def y(self, value: float) -> float:
        span = (self.up[-1] - self.up[0]) or 1.0
        return _HEIGHT - _BOTTOM - (value - self.up[0]) / span * (_HEIGHT - _TOP - _BOTTOM)


def _axes(frame: _Frame, x_name: str) -> Iterator[str]:
    left, right, bottom = _LEFT, frame.end, _HEIGHT - _BOTTOM
    for tick in frame.up:
        y = frame.y(tick)
        yield f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{left - 7}" y="{y + 3.5:.1f}" text-anchor="end">{tick:g}</text>'
    for tick in frame.across:
        yield f'<text class="tick" x="{frame.x(tick):.1f}" y="{bottom + 17}" text-anchor="middle">{_short(tick)}</text>'
    yield f'<text class="tick" x="{right + 24}" y="{bottom + 17}">{escape(x_name)}</text>'


def _drawn(frame: _Frame, lines: Sequence[Line]) -> Iterator[str]:
    ends: list[tuple[float, int, str]] = []
    for number, line in enumerate(lines):
        colour = f"line{number % _COLOURS}"
        points = line.points
        if line.noisy:
            yield _path(frame, points, f"{colour} faint")
            points = smoothed(points)
        yield _path(frame, points, colour)
        for x, y in [] if line.noisy or len(points) > 40 else points:
            yield (
                f'<circle class="{colour}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="2.6">'
                f"<title>{escape(line.name)} {y:.4g} at {x:g}</title></circle>"
            )
        ends.append((frame.y(points[-1][1]), number, _label(line.name, points[-1][1])))
    for y, number, text in _spread_labels(ends):
        place = f'x="{frame.end + 8:.1f}" y="{y + 4:.1f}"'
        yield f'<text class="label line{number % _COLOURS}" {place}>{escape(text)}</text>'


def _label(name: str, value: float) -> str:
    return f"{name} {value:.3g}".strip()


def _room(lines: Sequence[Line]) -> float:
    """Return the right margin for the longest label, in bold 12-pixel letters."""
    return 22 + 7.2 * max(6, *(len(_label(line.name, line.points[-1][1])) for line in lines), 0)


def _spread_labels(labels: list[tuple[float, int, str]]) -> list[tuple[float, int, str]]:
    """Spread the labels at the lines' ends: push down until none overlap, then shift all up into the image."""
    placed: list[tuple[float, int, str]] = []
    for y, number, text in sorted(labels):
        lowest = placed[-1][0] + _LABEL_SPACING if placed else _TOP
        placed.append((max(y, lowest), number, text))
    overlap = max(0.0, placed[-1][0] - (_HEIGHT - _BOTTOM)) if placed else 0.0
    return [(y - overlap, number, text) for y, number, text in placed]


def _path(frame: _Frame, points: Sequence[Point], classes: str) -> str:
    steps = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in points)
    return f'<polyline class="{classes}" points="{steps}"/>'


def _finite(points: Sequence[Point]) -> list[Point]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _short(number: float) -> str:
    return f"{number / 1000:g}k" if abs(number) >= 10_000 else f"{number:g}"
