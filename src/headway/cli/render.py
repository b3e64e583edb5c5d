"""Terminal output while a command works: progress bars, spinners, links to trackers."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from headway.core.errors import HeadwayError
from headway.core.format import duration, paint
from headway.core.progress import Report, with_listener

if TYPE_CHECKING:
    from headway.launcher.lifecycle import RunHandle


PLAIN_S = 10.0
SHOW_AFTER_S = 2.0  # shorter work shows no bar
DRAW_S = 0.2


def print_status(text: str) -> None:
    print(paint(f"headway: {text}", "dim"), file=sys.stderr)


@contextmanager
def bar() -> Iterator[Report]:
    """Yield a function to call with (what, done, total). Writes to stderr, so that --json output stays valid."""
    if sys.stderr.isatty():
        with _live() as report:
            yield report
    else:
        yield _plain()


@contextmanager
def _live() -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        current = ""

        def report(what: str, done: int, total: int) -> None:
            nonlocal current
            if what != current:  # a new task, so that the time left is that of this part
                progress.reset(task, description=what, total=total or None, completed=done)
                current = what
            progress.update(task, total=total or None, completed=done)

        yield report


def _plain() -> Report:
    printed_at, printed = 0.0, ""

    def report(what: str, done: int, total: int) -> None:
        nonlocal printed_at, printed
        now = time.monotonic()
        if what == printed and now - printed_at < PLAIN_S:
            return
        printed_at, printed = now, what
        share = f" {done / total:.0%}" if total else ""
        print(f"headway: {what}{share}", file=sys.stderr, flush=True)

    return report


@contextmanager
def progress_while(what: str) -> Iterator[Report]:
    """Show a progress bar while the block runs, once it takes longer than a moment; lines if there is no terminal.

    Yields a function to report progress; `headway.core.progress` reports inside the block are shown too.
    """
    state = _Progress(what)
    over = threading.Event()
    show = threading.Thread(target=_show, args=(state, over), name="headway-working", daemon=True)
    show.start()
    try:
        with with_listener(state.update):
            yield state.update
    finally:
        over.set()
        show.join()


class _Progress:
    """The newest report of progress."""

    def __init__(self, what: str) -> None:
        self.what, self.done, self.total = what, 0, 0

    def update(self, what: str, done: int, total: int) -> None:
        self.what, self.done, self.total = what, done, total


def _show(state: _Progress, done_event: threading.Event) -> None:
    began = time.monotonic()
    if done_event.wait(SHOW_AFTER_S):
        return
    if sys.stderr.isatty():
        with _live() as report:
            while not done_event.wait(DRAW_S):
                report(state.what, state.done, state.total)
        return
    while True:
        share = f" {state.done / state.total:.0%}" if state.total else ""
        print(f"headway: {state.what}{share}, {duration(time.monotonic() - began)}", file=sys.stderr, flush=True)
        if done_event.wait(PLAIN_S):
            return


# Web pages of a run: those of its target, and those of its trackers.


_FIRST_LINES = 500  # trackers print their address early


def links(launched: RunHandle) -> dict[str, str]:
    """Return the run's pages by name; empty if there are none. Makes no request except to the run folder."""
    found = launched.target.links(launched.target_handle)
    if "console" in launched.target_handle.details:
        found["console"] = str(launched.target_handle.details["console"])
    return {**found, **_tracker(launched)}


def _tracker(launched: RunHandle) -> dict[str, str]:
    """Return the pages of this run's trackers that rank 0 has printed so far."""
    found: dict[str, str] = {}
    try:
        names = launched.folder.plan().job.get("log_to", ())
        for line in islice(launched.folder.log_lines(rank=0), _FIRST_LINES) if names else ():
            pages = ((name, re.search(rf"\b{re.escape(name)}\b.*?(https?://\S+)", line.text)) for name in names)
            found = {**{name: page[1] for name, page in pages if page}, **found}
    except HeadwayError:  # unreachable: links are optional
        pass
    return found


def lines(launched: RunHandle) -> str:
    """Format the pages as `run` prints them; empty if there are none."""
    return "".join(f"\n{name}: {url}" for name, url in links(launched).items())
