"""Progress of what takes longer than a moment: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PLAIN_S = 10.0
Report = Callable[[str, int, int], None]  # what is being done, how much of it, of how much


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
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
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
