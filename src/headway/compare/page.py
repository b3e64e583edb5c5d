"""A comparison as a page: tables, and every curve with one line a run. Read without a network."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from headway.chart import Line, chart
from headway.version import __version__

_NOISY = ("grad_norm", "loss")


def page(found: Mapping[str, Any]) -> str:
    """The whole page as text."""
    assets = files("headway") / "report_assets"
    names = [run["name"] for run in found["runs"]]
    body = [
        _table(["", *names], [[name, *map(shown, values)] for name, values in found["metrics"].items()], "Metrics"),
        "".join(f"<p>{_text(note)}</p>" for note in found["notes"]),
        _table(["", *names], [[key, *values] for key, values in found["settings"].items()], "Set differently"),
        f'<h2>Curves</h2><div class="charts">{"".join(_curve(found, name) for name in found["curves"])}</div>',
    ]
    return Template((assets / "page.html").read_text(encoding="utf-8")).substitute(
        title=_text(" against ".join(names)),
        style=(assets / "style.css").read_text(encoding="utf-8"),
        subtitle=_text("; ".join(f"{run['name']}: {run['measured']}" for run in found["runs"])),
        body="\n".join(body),
        footer=_text(f"Written by Headway {__version__}. This file needs nothing else."),
    )


def shown(entry: Mapping[str, Any]) -> str:
    """0.912 [0.901, 0.923], and where it is known, by how much it differs from the first run."""
    if entry.get("value") is None:
        return ""
    text = f"{entry['value']:.4f}"
    if "low" in entry:
        text += f" [{entry['low']:.4f}, {entry['high']:.4f}]"
    if "difference" in entry:
        gap = entry["difference"]
        text += f"  {gap['value']:+.4f} [{gap['low']:+.4f}, {gap['high']:+.4f}]{' *' if differs(entry) else ''}"
    return text


def differs(entry: Mapping[str, Any]) -> bool:
    """Whether the interval of the difference leaves out 0."""
    gap = entry.get("difference")
    return gap is not None and (gap["low"] > 0 or gap["high"] < 0)


def _curve(found: Mapping[str, Any], name: str) -> str:
    runs = zip(found["runs"], found["curves"][name], strict=True)
    lines = [Line(run["name"], [(x, y) for x, y in points], noisy=name in _NOISY) for run, points in runs if points]
    return f"<figure><figcaption>{_text(name)}</figcaption>{chart(name, lines)}</figure>"


def _table(head: Sequence[object], rows: Sequence[Sequence[object]], title: str) -> str:
    if not rows:
        return ""
    lines = ["".join(f"<th>{_text(cell)}</th>" for cell in head)]
    lines += ["".join(f"<td>{_text(cell)}</td>" for cell in row) for row in rows]
    cells = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<h2>{_text(title)}</h2><div class="scroll"><table>{cells}</table></div>'


def _text(value: object) -> str:
    return html.escape(str(value))
