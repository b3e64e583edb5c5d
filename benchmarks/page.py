"""Write docs/benchmarks.md from docs/benchmarks.json: tables as printed, a plot per group, limits in one table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime, timezone
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.harness import Note, machine

DOCS = Path(__file__).resolve().parents[1] / "docs"
KEPT, PAGE, PLOTS = DOCS / "benchmarks.json", DOCS / "benchmarks.md", DOCS / "pictures"
HEAD = """# Benchmarks

`make bench` runs all of them, `make bench-step-overhead` one. Ratios come from one run on one machine: all tools take
turns, in a random order, and medians are compared. Other tools are installed in separate environments under
~/.cache/headway-bench, and listed if they do not install. `python -m benchmarks --record NAME` writes this page. It
lists first where Headway is slower than another tool; **broken promise** marks a measurement that misses its promise.
"""
NOTEWORTHY = 1.05  # times another tool's: less is noise
LIMITS = ("bare", "plain", "copy in memory", "no search")  # prefixes of names that are limits, not tools


def keep(name: str, about: str, said: str, notes: Iterable[Note], *, broken: bool) -> None:
    kept = _kept()
    kept[name] = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "about": about.strip(),
        "said": said.strip(),
        "broken": broken,
        "notes": [asdict(note) for note in notes],
    }
    KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def write() -> None:
    kept = _kept()
    parts = [HEAD, _slower(kept), "## Against the limit\n", _limits(kept)]
    for name, one in sorted(kept.items()):
        parts.append(f"## {name}\n\n{one['about']}\n\n*{one['date']}, {one['machine']}*\n\n{one['said']}\n")
        groups = list(dict.fromkeys(note["group"] for note in one["notes"]))
        for number, group in enumerate(groups):
            notes = [note for note in one["notes"] if note["group"] == group]
            if len(notes) > 1:
                file = PLOTS / f"bench-{name.replace('_', '-')}-{number}.svg"
                file.write_text(_plot(group, notes))
                parts.append(f"![{group}](pictures/{file.name})\n")
    PAGE.write_text("\n".join(parts))


def _kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return found


def _slower(kept: dict[str, Any]) -> str:
    lines = ["## Where Headway is slower\n"]
    for name in sorted(kept):
        for group, ours, theirs, times in slower(kept[name]["notes"]):
            lines.append(f"- {name}, {group}: {times:.2f} × {theirs} ({ours})")
        if kept[name]["broken"]:
            lines.append(f"- {name}: a promise is broken (see its section)")
    return "\n".join(lines if len(lines) > 1 else [*lines, "Nowhere in these measurements."]) + "\n"


def slower(notes: list[dict[str, Any]]) -> list[tuple[str, str, str, float]]:
    """Return group, our entry, the other tool and the ratio wherever another tool is faster by more than noise."""
    found = []
    for rival in notes:
        if is_ours(rival) or rival["name"].startswith(LIMITS):
            continue
        group = [note for note in notes if note["group"] == rival["group"] and is_ours(note)]
        alike = [note for note in group if _variant(note) == _variant(rival)]  # as "…, 2" of two ranks
        for ours in alike or group:
            is_rate = rival["unit"].endswith("/s")
            times = rival["value"] / ours["value"] if is_rate else ours["value"] / rival["value"]
            if times > NOTEWORTHY:
                found.append((rival["group"], ours["name"], rival["name"], times))
    return found


def is_ours(note: dict[str, Any]) -> bool:
    return "headway" in note["name"].lower()


def _variant(note: dict[str, Any]) -> str:
    return str(note["name"]).partition(", ")[2]


def _limits(kept: dict[str, Any]) -> str:
    lines = ["| what | measured | its limit | × the limit |", "| --- | ---: | --- | ---: |"]
    for one in (kept[name] for name in sorted(kept)):
        for note in map(partial(_with_limit, one["notes"]), one["notes"]):
            if note["floor"]:
                what = f"{note['name']}, {note['group']}"
                ratio = note["value"] / note["floor"]
                limit = f"{note['limit']}: {_number(note['floor'])} {note['unit']}"
                lines.append(f"| {what} | {_number(note['value'])} {note['unit']} | {limit} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


def _with_limit(notes: list[dict[str, Any]], note: dict[str, Any]) -> dict[str, Any]:
    """Return the note's limit, or else that of its group if it has just one."""
    limits = {(other["limit"], other["floor"]) for other in notes if other["group"] == note["group"] and other["floor"]}
    if note["floor"] or len(limits) != 1:
        return note
    ((limit, floor),) = limits
    return {**note, "limit": limit, "floor": floor}


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _plot(title: str, notes: list[dict[str, Any]]) -> str:
    """Render bars, ours in colour; the grey is readable on white and on black."""
    left, row = max(160, 16 + 7 * max(len(note["name"]) for note in notes)), 26  # the mean width of a letter
    width = left + 400
    most = max(note["value"] for note in notes) or 1.0
    bars = []
    for number, note in enumerate(notes):
        y = 34 + number * row
        length = max(1.0, note["value"] / most * (width - left - 110))
        colour = "#2a7de1" if is_ours(note) else "#9aa0a6"
        bars.append(
            f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(note["name"])}</text>'
            f'<rect x="{left}" y="{y}" width="{length:.1f}" height="18" rx="3" fill="{colour}"/>'
            f'<text x="{left + length + 6:.1f}" y="{y + 13}">{_number(note["value"])} {escape(note["unit"])}</text>'
        )
    height = 44 + len(notes) * row
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="#808890">'
        f'<text x="8" y="18" font-size="13" font-weight="600">{escape(title)}</text>{"".join(bars)}</svg>\n'
    )
