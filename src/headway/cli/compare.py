"""`headway compare`: runs side by side, with confidence intervals, what was set differently, and curves."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.cli.runs import add_json, locate
from headway.cli.show import as_json, duration, paint, table
from headway.extras import needs

_BARS = "▁▂▃▄▅▆▇█"
_WIDE = 24  # letters of a curve


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="names, folders or URLs; the first is compared with")
    parser.add_argument("--page", metavar="FILE", help="write it as a page with charts")
    add_json(parser)


def main(args: argparse.Namespace) -> int:
    with needs("train", "compare"):
        from headway.compare import compare, read_run
        from headway.compare.page import page

        found = compare([read_run(locate(text)) for text in args.runs])
    if args.page:
        Path(args.page).write_text(page(found), encoding="utf-8")
    if args.json:
        print(as_json(found))
        return 0
    for line in _told(found):
        print(line)
    if args.page:
        print(f"\npage: {args.page}")
    return 0


def _told(found: Mapping[str, Any]) -> list[str]:
    from headway.compare.page import differs, shown

    names = [run["name"] for run in found["runs"]]
    metrics = [[name, *map(shown, values)] for name, values in found["metrics"].items()]
    lines = [table(["metric", *names], metrics)] if metrics else []
    if any(differs(entry) for values in found["metrics"].values() for entry in values):
        lines.append(paint("* the difference to the first run is beyond chance (95 % of resamples)", "dim"))
    about = [
        ["measured on", *(run["measured"] for run in found["runs"])],
        ["steps", *(f"{run['steps']:,}" for run in found["runs"])],
        ["training", *("" if run["seconds"] is None else duration(run["seconds"]) for run in found["runs"])],
    ]
    lines += ["", table(["", *names], about)]
    if found["settings"]:
        rows = [[key, *(_short(value) for value in values)] for key, values in found["settings"].items()]
        lines += ["", table(["set differently", *names], rows)]
    curves = [
        [name, *(spark([y for _, y in points]) for points in each)]
        for name, each in found["curves"].items()
        if name == "loss" or name in found["metrics"]
    ]
    if curves:
        lines += ["", table(["curve", *names], curves)]
    return [*lines, *(f"note: {note}" for note in found["notes"])]


def spark(values: Sequence[float]) -> str:
    """A curve in letters, from its first value to its last: 0.41 ▁▃▅▆▇█ 0.93."""
    if not values:
        return ""
    step = max(1.0, len(values) / _WIDE)
    some = [values[min(len(values) - 1, int(n * step))] for n in range(min(_WIDE, len(values)))]
    low, high = min(some), max(some)
    scale = (len(_BARS) - 1) / ((high - low) or 1.0)
    return f"{values[0]:.3g} {''.join(_BARS[round((value - low) * scale)] for value in some)} {values[-1]:.3g}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
