"""What the terminal shows while a command works: progress bars, spinners, links to trackers."""

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
from headway.core.format import duration
from headway.core.progress import Report, with_listener

if TYPE_CHECKING:
    from headway.launcher.lifecycle import RunHandle


PLAIN_S = 10.0
SHOW_AFTER_S = 2.0  # what is done by then needs no bar
DRAW_S = 0.2


@contextmanager
def bar() -> Iterator[Report]:
    """Gives a function to call with (what, done, total). Writes to stderr, so that --json stays clean."""
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
            if what != current:  # its own start, so that the time left is that of this part
                progress.reset(task, description=what, total=total or None, completed=done)
                current = what
            progress.update(task, total=total or None, completed=done)

        yield report


def _plain() -> Report:
    said_at, said = 0.0, ""

    def report(what: str, done: int, total: int) -> None:
        nonlocal said_at, said
        now = time.monotonic()
        if what == said and now - said_at < PLAIN_S:
            return
        said_at, said = now, what
        share = f" {done / total:.0%}" if total else ""
        print(f"headway: {what}{share}", file=sys.stderr, flush=True)

    return report


@contextmanager
def progress_while(what: str) -> Iterator[Report]:
    """Around anything that may take longer than a moment: shown from then on, with how far it is where that is told.

    Gives a function to tell it by; what is told within by `headway.core.progress` counts too.
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
    """The newest word on how far something is."""

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


# Where a run can be looked at in a browser: its target's pages, and its tracker's.


_TRACKED = re.compile(r"wandb\b.*?(https?://\S+)")  # what rank 0 says when its tracker is up
_FIRST_LINES = 500  # it is said early


def links(launched: RunHandle) -> dict[str, str]:
    """By name; empty where nothing has a page. Nothing is asked over a network but the run's folder."""
    own = getattr(launched.target, "links", None)
    found: dict[str, str] = dict(own(launched.handle)) if own is not None else {}
    if "console" in launched.handle.details:
        found["console"] = str(launched.handle.details["console"])
    return {**found, **_tracker(launched)}


def _tracker(launched: RunHandle) -> dict[str, str]:
    """W&B's page of this run, as soon as its tracker has said where it is."""
    try:
        if "wandb" not in launched.folder.plan().job.get("log_to", ()):
            return {}
        for line in islice(launched.folder.log_lines(rank=0), _FIRST_LINES):
            seen = _TRACKED.search(line.text)
            if seen:
                return {"wandb": seen[1]}
    except HeadwayError:  # out of reach: a link is a nicety
        pass
    return {}


def lines(launched: RunHandle) -> str:
    """As `run` prints them; empty where nothing has a page."""
    return "".join(f"\n{name}: {url}" for name, url in links(launched).items())
