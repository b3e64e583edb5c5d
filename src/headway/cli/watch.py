"""`headway watch`: a run live in this terminal. Leaving it leaves the run alone."""

from __future__ import annotations

import argparse
import os
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headway.cli.attached import conclusion, say
from headway.cli.logs import shown
from headway.cli.runs import add_run, locate
from headway.cli.show import paint
from headway.errors import FINISHED

if TYPE_CHECKING:
    from headway.launcher import Launched, Outcome
    from headway.targets.base import LogLine
    from headway.watch.look import View

KEPT = 200  # lines of log: more than any terminal is high
DRAW_S = 0.5
PLAIN_S = 10.0  # between lines of progress where there is no terminal
_LEAVE = set(b"qQ\x04")  # the last one: Ctrl-D; and escape, if it comes alone
_SEQUENCE = re.compile(rb"\x1b[\[O][0-9;]*[A-Za-z~]")  # arrows and the like: no wish to leave
FAREWELL = 5  # lines of log in what stays on the screen


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--plain", action="store_true", help="lines instead of a panel, as where there is no terminal")


def main(args: argparse.Namespace) -> int:
    from headway.launcher import reach

    launched = reach(locate(args.run), say=say)
    follower = Follower(launched)
    live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not args.plain
    try:
        outcome = _panel(launched, follower) if live else _plain(launched, follower)
    except KeyboardInterrupt:
        outcome = None
    if outcome is None:
        print(f"{launched.run} goes on.   next: headway watch {launched.run}   or   headway stop {launched.run}")
        return FINISHED
    print(conclusion(outcome, launched))
    return outcome.exit_code


class Follower:
    """Follows a run to its end in a thread of its own, so that whoever draws never waits for a store."""

    def __init__(self, launched: Launched) -> None:
        self.words: deque[LogLine] = deque(maxlen=KEPT)
        self.on_line: Callable[[LogLine], None] = self.words.append
        self.over = threading.Event()
        self._launched = launched
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._follow, name="headway-follow", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def outcome(self) -> Outcome:
        """How it ended, once it is over. What went wrong while following is raised here."""
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return self._outcome

    def _follow(self) -> None:
        try:
            self._outcome = self._launched.wait(lambda line: self.on_line(line))
        except BaseException as error:  # noqa: BLE001 - handed to the thread that can say it, and raised there
            self._error = error
        finally:
            self.over.set()


def _panel(launched: Launched, follower: Follower) -> Outcome | None:
    """None where the watcher left before the run's end."""
    from rich.console import Console
    from rich.live import Live

    from headway.watch.look import Lookout
    from headway.watch.panel import Screen

    lookout = Lookout(launched)
    console = Console(highlight=False)
    follower.start()

    def drawn(*, now: bool = False) -> Screen:
        return Screen(lookout.look(now=now), list(follower.words), "q leaves; the run goes on")

    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while not follower.over.is_set():
            live.update(drawn(), refresh=True)
            if pressed(DRAW_S):
                return None
    console.print(Screen(lookout.look(now=True), list(follower.words), most_words=FAREWELL))
    return follower.outcome


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """`pressed(seconds)` waits that long for a key that means leaving. Keys are not echoed meanwhile."""
    if not sys.stdin.isatty():
        yield _rested
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield lambda seconds: _pressed(fd, seconds)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _pressed(fd: int, seconds: float) -> bool:
    if not select.select([fd], [], [], seconds)[0]:
        return False
    keys = os.read(fd, 1024)
    return not keys or keys == b"\x1b" or bool(_LEAVE & set(_SEQUENCE.sub(b"", keys)))


def _rested(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _plain(launched: Launched, follower: Follower) -> Outcome:
    """Every line of log as it comes, a line of progress now and then, and every change of state."""
    from headway.watch.look import Lookout

    lookout = Lookout(launched)
    follower.on_line = lambda line: print(shown(line), flush=True)
    follower.start()
    said, said_at = "", time.monotonic() - PLAIN_S
    while not follower.over.wait(DRAW_S):
        view = lookout.look()
        state = view.status.state.value
        if (state, time.monotonic() - said_at > PLAIN_S) != (said, False):
            print(paint(_told(view), "dim"), flush=True)
            said, said_at = state, time.monotonic()
    return follower.outcome


def _told(view: View) -> str:
    """One line: state, where it is, what it costs, and what it prints of itself last."""
    from headway.watch.panel import money, number, where

    curves = [f"{name} {number(trace.last)}" for name, trace in list(view.curves.items())[:4]]
    reason = f" ({view.trouble or view.status.reason})" if view.trouble or view.status.reason else ""
    return "  ".join([f"headway: {view.status.state.value}{reason}", *where(view), *curves, money(view)])
