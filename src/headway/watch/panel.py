"""The panel itself: from what was seen of a run to what a terminal of this size shows. Pure, apart from rich."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headway.cli.money import usd
from headway.cli.show import duration
from headway.targets.base import LogLine
from headway.watch.look import Trace, View
from headway.watch.sparkline import BLOCKS, PLAIN, sparkline

STATES = {"running": "bold blue", "finished": "bold green", "failed": "bold red", "lost": "bold red"}
_AROUND = 9  # lines that are neither curves nor log: frame, head, bar, money, titles
_FEWEST_LOGS = 3


@dataclass(frozen=True, slots=True)
class Screen:
    """One view and the last words, drawn to fit: curves first, log lines in what room is left."""

    view: View
    words: Sequence[LogLine]
    hint: str = ""
    most_words: int | None = None  # by default as many as there is room for

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width, height = options.max_width - 4, options.height or console.height
        marks = PLAIN if options.ascii_only else BLOCKS
        room = max(1, height - _AROUND - _FEWEST_LOGS)
        shown = list(self.view.curves.items())[:room]
        left = max(_FEWEST_LOGS, height - _AROUND - max(1, len(shown)))
        body: list[RenderableType] = [
            _bar(self.view, width),
            Text(money(self.view), no_wrap=True, overflow="ellipsis"),
            Text(""),
            _curves(shown, width, marks) if shown else Text("no curves yet", style="dim"),
            Text(""),
            *_lines(list(self.words)[-min(left, left if self.most_words is None else self.most_words) :]),
        ]
        hint = self.view.trouble or self.hint
        yield Panel(Group(*body), title=_head(self.view), subtitle=Text(hint, style="dim"), title_align="left")


def _head(view: View) -> Text:
    state, reason = view.status.state.value, view.status.reason
    attempt = view.progress.get("attempt")
    more = f", attempt {attempt}" if attempt and attempt > 1 else ""
    head = Text.assemble((view.run, "bold"), f" on {view.target}{more}  ", (state, STATES.get(state, "bold yellow")))
    return head.append(f": {reason}" if reason else "")


def _bar(view: View, width: int) -> RenderableType:
    progress, state = view.progress, view.status.state
    parts = Text("  ".join(where(view)), no_wrap=True, overflow="ellipsis")
    if not progress.get("steps"):
        return parts if progress else Text("waiting for the first step" if not state.ended else "", style="dim")
    bar = ProgressBar(total=float(progress["steps"]), completed=float(progress.get("step", 0)))
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(ratio=1, min_width=10)
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=max(10, width - 12))
    grid.add_row(bar, parts)
    return grid


def where(view: View) -> list[str]:
    """Epoch, step, speed, and how long it will take: as far as they are known."""
    progress = view.progress
    parts = []
    if "epoch" in progress:
        parts.append(f"epoch {progress['epoch'] + 1}" + (f"/{progress['epochs']}" if progress.get("epochs") else ""))
    if progress.get("step") is not None:
        parts.append(f"step {progress['step']}" + (f"/{progress['steps']}" if progress.get("steps") else ""))
    if progress.get("doing"):
        parts.append(str(progress["doing"]))
    if progress.get("rate"):
        parts.append(f"{progress['rate']:.3g} steps/s")
    if progress.get("eta_s") is not None and not view.status.state.ended:
        parts.append(f"{duration(progress['eta_s'])} left")
    return parts


def money(view: View) -> str:
    """Time and money, against the budget where there is one."""
    time = f"spent {duration(view.spent_s)}" + (f" of {duration(view.budget_s)}" if view.budget_s else "")
    if view.spent_usd is None:
        return f"{time}, nothing is billed"
    return f"{time}, {usd(view.spent_usd)}" + (f" of {usd(view.budget_usd)}" if view.budget_usd else "")


def _curves(shown: Sequence[tuple[str, Trace]], width: int, marks: str) -> RenderableType:
    names = min(24, max(len(name) for name, _ in shown))
    room = max(4, width - names - 36)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=names, no_wrap=True, overflow="ellipsis")
    grid.add_column(width=room, no_wrap=True)
    grid.add_column(width=10, no_wrap=True)
    grid.add_column(no_wrap=True, style="dim", overflow="ellipsis")
    for name, trace in shown:
        line = Text(sparkline(trace.values, room, marks=marks), style="cyan")
        grid.add_row(Text(name), line, Text(number(trace.last), style="bold"), f"{_span(trace)}")
    return grid


def _span(trace: Trace) -> str:
    return "" if math.isnan(trace.least) else f"{number(trace.least)} to {number(trace.most)}"


def number(value: float) -> str:
    """Four digits, whatever the size."""
    return f"{value:.4g}"


def _lines(words: Sequence[LogLine]) -> Iterator[Text]:
    for line in words:
        head = ("headway: ", "dim") if line.rank < 0 else (f"[{line.rank}] " if line.rank else "", "dim")
        # Control characters of the run's own output must not move our cursor.
        told = "".join(mark if mark.isprintable() else " " for mark in line.text)
        yield Text.assemble(head, told, no_wrap=True, overflow="ellipsis")
