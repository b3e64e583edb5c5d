"""The terminal view of `headway watch`: poll a run, and render the result with rich to fit the terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headway.core.errors import HeadwayError
from headway.core.format import duration
from headway.core.types import LogLine, State, Status
from headway.rundir.history import Curves
from headway.rundir.overview import RunOverview, describe_speed
from headway.rundir.spending import Spending
from headway.storage import local_path

if TYPE_CHECKING:
    from headway.launcher.lifecycle import RunHandle


# Sparklines


BLOCKS, PLAIN = "▁▂▃▄▅▆▇█", "_.-~=+*#"


def sparkline(values: Sequence[float], width: int, *, marks: str = BLOCKS) -> str:
    """Render values as at most `width` characters, one per bin of equal length.

    Each shows the mean of its bin, or is blank if the bin has no finite value.

    The lowest mean gets the lowest mark, the highest the highest. A flat curve gets the lowest mark.
    """
    if width <= 0 or not len(values):
        return ""
    means = downsample(values, width)
    known = [mean for mean in means if mean is not None]
    if not known:
        return " " * len(means)
    low, span = min(known), max(known) - min(known)
    top = len(marks) - 1

    def mark(mean: float | None) -> str:
        if mean is None:
            return " "
        # Both sides are halved so that a very wide span does not overflow.
        share = (mean / 2 - low / 2) / (span / 2) if math.isfinite(span) and span > 0 else 0.0
        return marks[min(top, max(0, round(share * top)))]

    return "".join(map(mark, means))


def downsample(values: Sequence[float], max_points: int) -> list[float | None]:
    """Return the mean of each of at most `max_points` bins of equal length; None for a bin without finite values."""
    return [_mean(values[start:stop]) for start, stop in _bin_edges(len(values), max_points)] if len(values) else []


def _bin_edges(count: int, width: int) -> list[tuple[int, int]]:
    parts = min(count, width)
    edges = [n * count // parts for n in range(parts + 1)]
    return list(pairwise(edges))


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(value / len(finite) for value in finite) if finite else None


# Polling a run: its folder, and its target's status


LOCAL_POLL_S, REMOTE_POLL_S = 1.0, 5.0  # between reads of a local folder, and of a remote one
_MAX_WIDTH: Final = 512
_FIRST: Final = ("loss", "score")  # metrics shown first


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One curve, downsampled to more points than a terminal is wide."""

    values: tuple[float, ...]
    last: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Series:
        finite = [value for value in values if math.isfinite(value)] or [math.nan]
        thin = (math.nan if mean is None else mean for mean in downsample(values, _MAX_WIDTH))
        return cls(values=tuple(thin), last=values[-1], minimum=min(finite), maximum=max(finite))


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSnapshot:
    """State of a run at one moment.

    `error` is why a read failed; the values are then those of the last successful one.
    """

    run: str
    target: str
    url: str
    status: Status = field(default_factory=lambda: Status(state=State.PENDING))
    progress: Mapping[str, Any] = field(default_factory=dict)
    curves: Mapping[str, Series] = field(default_factory=dict)
    spent: Spending = field(default_factory=lambda: Spending(seconds=0.0))
    error: str = ""


class RunPoller:
    """Polls a run on demand, but not more often than NEAR_S (local folder) or FAR_S (remote folder)."""

    def __init__(self, launched: RunHandle, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._launched, self._clock = launched, clock
        self._folder = launched.folder
        self._every_s = REMOTE_POLL_S if local_path(launched.url) is None else LOCAL_POLL_S
        self._curves, self._series = Curves(self._folder), dict[str, Series]()
        self._plan: Any = None
        self._polled_at = -self._every_s
        self.view = RunSnapshot(run=launched.run, target=launched.target_handle.target, url=launched.url)

    def poll(self, *, now: bool = False) -> RunSnapshot:
        """Return the newest snapshot. With `now`, read again even if the last one is recent."""
        if now or self._clock() - self._polled_at >= self._every_s:
            try:
                self.view = self._read()
            except (HeadwayError, ValueError) as error:  # the store is briefly unreachable: show it, and retry
                self.view = _with_error(self.view, str(error).splitlines()[0])
            self._polled_at = self._clock()
        return self.view

    def _read(self) -> RunSnapshot:
        self._plan = self._plan or self._folder.plan()
        overview = RunOverview.of(self._folder, status=self._launched.current_status(), plan=self._plan)
        if self._curves.refresh():
            named = ((name, self._curves[name].values) for name in ordered(self._curves.names))
            self._series = {name: Series.of(values) for name, values in named if values}
        return RunSnapshot(
            run=self._launched.run,
            target=self._launched.target_handle.target,
            url=self._launched.url,
            status=overview.status,
            progress=overview.progress,
            curves=self._series,
            spent=overview.spent,
        )


def ordered(names: Sequence[str]) -> list[str]:
    """Sort metric names: loss and score first, the rest by name."""
    return sorted(names, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))


def _with_error(view: RunSnapshot, trouble: str) -> RunSnapshot:
    return replace(view, error=trouble)


STATES = {"running": "bold blue", "finished": "bold green", "failed": "bold red", "lost": "bold red"}
_AROUND = 9  # lines that are neither curves nor log: frame, head, bar, money, titles
_MIN_LOG_LINES = 3


@dataclass(frozen=True, slots=True)
class Screen:
    """A snapshot and the last log lines, drawn to fit: curves first, log lines in the remaining space."""

    view: RunSnapshot
    log_lines: Sequence[LogLine]
    hint: str = ""
    max_log_lines: int | None = None  # default: as many as fit

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width, height = options.max_width - 4, options.height or console.height
        marks = PLAIN if options.ascii_only else BLOCKS
        room = max(1, height - _AROUND - _MIN_LOG_LINES)
        shown = list(self.view.curves.items())[:room]
        left = max(_MIN_LOG_LINES, height - _AROUND - max(1, len(shown)))
        body: list[RenderableType] = [
            _bar(self.view, width),
            Text(money(self.view), no_wrap=True, overflow="ellipsis"),
            Text(""),
            _curves(shown, width, marks) if shown else Text("no curves yet", style="dim"),
            Text(""),
            *_lines(list(self.log_lines)[-min(left, left if self.max_log_lines is None else self.max_log_lines) :]),
        ]
        hint = self.view.error or self.hint
        yield Panel(Group(*body), title=_head(self.view), subtitle=Text(hint, style="dim"), title_align="left")


def _head(view: RunSnapshot) -> Text:
    state, reason = view.status.state.value, view.status.reason
    attempt = view.progress.get("attempt")
    more = f", attempt {attempt}" if attempt and attempt > 1 else ""
    head = Text.assemble((view.run, "bold"), f" on {view.target}{more}  ", (state, STATES.get(state, "bold yellow")))
    return head.append(f": {reason}" if reason else "")


def _bar(view: RunSnapshot, width: int) -> RenderableType:
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


def where(view: RunSnapshot) -> list[str]:
    """Return epoch, step, speed and remaining time, as far as they are known."""
    progress = view.progress
    parts = []
    if "epoch" in progress:
        parts.append(f"epoch {progress['epoch'] + 1}" + (f"/{progress['epochs']}" if progress.get("epochs") else ""))
    if progress.get("step") is not None:
        parts.append(f"step {progress['step']}" + (f"/{progress['steps']}" if progress.get("steps") else ""))
    if progress.get("doing"):
        parts.append(str(progress["doing"]))
    speed = describe_speed(progress)
    if speed:
        parts.append(speed)
    if progress.get("eta_s") is not None and not view.status.state.ended:
        parts.append(f"{duration(progress['eta_s'])} left")
    return parts


def money(view: RunSnapshot) -> str:
    """Format time and money spent, and the budget if there is one."""
    return f"spent {view.spent.time_text}, {view.spent.money_text or 'nothing is billed'}"


def _curves(shown: Sequence[tuple[str, Series]], width: int, marks: str) -> RenderableType:
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


def _span(trace: Series) -> str:
    return "" if math.isnan(trace.minimum) else f"{number(trace.minimum)} to {number(trace.maximum)}"


def number(value: float) -> str:
    """Format with four significant digits."""
    return f"{value:.4g}"


def _lines(words: Sequence[LogLine]) -> Iterator[Text]:
    for line in words:
        head = ("headway: ", "dim") if line.rank < 0 else (f"[{line.rank}] " if line.rank else "", "dim")
        # Control characters in the run's output must not move the cursor.
        printable = "".join(mark if mark.isprintable() else " " for mark in line.text)
        yield Text.assemble(head, printable, no_wrap=True, overflow="ellipsis")
