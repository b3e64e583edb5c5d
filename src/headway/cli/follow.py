"""Follow a run in the terminal: the verbs `logs` and `watch`, and the client attached to `run` and `resume`."""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, Any

from headway.cli.options import add_json, add_run, locate
from headway.cli.render import lines as page_lines
from headway.core.errors import FINISHED, BadInput, HeadwayError
from headway.core.format import as_json, duration, paint, usd
from headway.core.plan import EXACT, UNKNOWN, again
from headway.core.types import State

if TYPE_CHECKING:
    from headway.core.types import LogLine
    from headway.dashboard.terminal import RunSnapshot
    from headway.launcher.lifecycle import Outcome, RunHandle
    from headway.rundir.layout import RunFolder


# `headway logs`: what a run printed, complete and in order; with -f from before it starts to its end.


def logs_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("--rank", type=int, metavar="N", help="only this rank (default: all; -1: the supervisor)")
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N lines")
    parser.add_argument("--since", metavar="T", help="a duration (10m) or a time (2026-01-31T12:00)")
    add_json(parser)


def logs_command(args: argparse.Namespace) -> int:
    from headway.launcher.lifecycle import logs

    url = locate(args.run)
    start = since(args.since) if args.since else ""

    def chosen(*, follow: bool) -> Iterator[LogLine]:
        return (line for line in logs(url, follow=follow, rank=args.rank) if line.time >= start)

    # What is there already is cut to the last N; what comes after is new, and all of it is shown.
    skipped = 0 if args.tail is None else max(0, sum(1 for _ in chosen(follow=False)) - args.tail)
    lines = islice(chosen(follow=args.follow), skipped, None)
    for line in lines:
        print(as_record(line) if args.json else shown(line), flush=args.follow)
    return 0


def shown(line: LogLine) -> str:
    if line.rank < 0:
        return paint(f"headway: {line.text}", "dim")
    return f"[{line.rank}] {line.text}" if line.rank else line.text


def since(text: str) -> str:
    """The time meant, as log lines carry it."""
    from headway.spec.fields import duration

    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return moment.astimezone(timezone.utc).isoformat()
    except ValueError:
        pass
    try:
        seconds = duration(text)
    except ValueError:
        raise BadInput(f"--since {text}: neither a duration nor a time", fix="--since 10m") from None
    return (datetime.now(timezone.utc) - timedelta(seconds=seconds)).isoformat()


def as_record(line: LogLine) -> str:
    return json.dumps({"rank": line.rank, "time": line.time, "text": line.text}, ensure_ascii=False)


LOOK_S = 0.5  # how often the progress is read again


class _Dismissed(BaseException):
    """SIGTERM: whoever started this client wants it gone."""


def say(text: str) -> None:
    print(paint(f"headway: {text}", "dim"), file=sys.stderr)


def attach(launched: RunHandle, *, since: str = "", json: bool = False) -> int:
    """Watch to the end and return the run's exit code. Ctrl-C asks once; a second one stops the run. SIGTERM ends the
    watching alone.

    What was printed before `since`, by earlier attempts, is not shown again.
    """
    say(f"{launched.run} in {launched.url}{page_lines(launched)}")
    try:
        with _dismissable(), _display(launched, quiet=json) as show:
            outcome = launched.wait(lambda line: show(line) if line.time >= since else None)
    except _Dismissed:
        say(_goes_on(launched.run))
        return 128 + signal.SIGTERM
    except KeyboardInterrupt:
        if _leave():
            print(f"\n{_goes_on(launched.run)}")
            return FINISHED
        say(f"stopping{first_of_all(recorded_kind(launched.folder))}")
        outcome = launched.stop("Ctrl-C")
    print(as_json(_summary(outcome, launched)) if json else conclusion(outcome, launched))
    return outcome.exit_code


@contextmanager
def _dismissable() -> Iterator[None]:
    def dismissed(number: int, frame: FrameType | None) -> None:
        raise _Dismissed

    before = signal.signal(signal.SIGTERM, dismissed)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _goes_on(run: str) -> str:
    return f"{run} goes on.   next: headway logs {run} -f   or   headway stop {run}"


def conclusion(outcome: Outcome, launched: RunHandle) -> str:
    """How it ended, and what to type next."""
    run, state, reason = outcome.run, outcome.status.state, outcome.status.reason
    good = outcome.exit_code == FINISHED
    head = f"{run} {state.value}" + (f": {reason}" if reason else "")
    lines = [paint(head, "green" if good else "red" if outcome.exit_code == 1 else "yellow")]
    took = taken(launched) if state.ended else ""
    if took:
        lines.append(took)
    if state in (State.FAILED, State.LOST):
        lines.append(explained(outcome, launched))
    if outcome.receipt and outcome.receipt.left:
        lines.append(f"still there: {', '.join(outcome.receipt.left)}   fix: headway down {run}")
    if outcome.receipt and outcome.receipt.unverified:
        lines.append(f"nobody could be asked whether it is gone: {', '.join(outcome.receipt.unverified)}")
    lines += how(recorded_kind(launched.folder), state)
    return "\n".join([*lines, f"folder: {launched.url}", f"next: {following(launched, state)}"])


def taken(launched: RunHandle) -> str:
    """What it took and cost, against what had been expected of it."""
    from headway.rundir.lease import spent_s, spent_usd

    try:
        plan, seconds = launched.folder.plan(), spent_s(launched.folder)
    except HeadwayError:  # out of reach, or damaged: how it ended has been said
        return ""
    cost, expected = spent_usd(plan, seconds), plan.price.get("expected_hours")
    words = f"took {duration(seconds)}" + (f" and {usd(cost)}" if cost is not None else "")
    if expected is None:
        return words
    reckoned = plan.price.get("expected_usd")
    money = f" and {usd(reckoned)}" if reckoned is not None else ""
    return f"{words}; expected ({plan.price.get('basis')}): {duration(expected * 3600)}{money}"


def explained(outcome: Outcome, launched: RunHandle) -> str:
    """Cause, evidence and what to type; or the last words of the first rank that failed."""
    from headway.cli.inspect import describe_cause
    from headway.diagnose.diagnosis import why

    try:
        return describe_cause(why(launched, outcome.status))
    except HeadwayError as error:  # a folder out of reach: that it failed has been said
        return f"  why: {error}"


def following(launched: RunHandle, state: State) -> str:
    """What one would most likely type next."""
    if state.resumable:
        return f"headway resume {launched.run}"
    if not state.ended:
        return f"headway logs {launched.run} -f"
    return f"headway {'eval' if launched.folder.plan().job.get('recipe') else 'pull'} {launched.run}"


def recorded_kind(folder: RunFolder) -> str:
    """How the run resumes; not known where its plan cannot be read."""
    from headway.packaging.resume_evidence import kind_of

    try:
        return kind_of(folder.plan())
    except HeadwayError:
        return UNKNOWN


def how(kind: str, state: State) -> list[str]:
    """What a resume does, where it can be resumed and would do less than go on exactly."""
    return [f"if resumed, {again(kind)}"] if state.resumable and kind != EXACT else []


def first_of_all(kind: str) -> str:
    """What a stop waits for; nobody knows what a script does that Headway knows nothing of."""
    return ": a checkpoint is written first" if kind == EXACT else ""


def _summary(outcome: Outcome, launched: RunHandle) -> dict[str, Any]:
    status = outcome.status
    left = list(outcome.receipt.left) if outcome.receipt else None
    from headway.rundir.lease import spent_s, spent_usd

    seconds = spent_s(launched.folder)
    cost = spent_usd(launched.folder.plan(), seconds)
    spent = {"seconds": round(seconds, 3), "usd": None if cost is None else round(cost, 4)}
    return {
        "spent": spent,
        "run": outcome.run,
        "url": launched.url,
        "state": status.state.value,
        "reason": status.reason,
        "resume": recorded_kind(launched.folder),
        "left": left,
    }


def _leave() -> bool:
    """True to detach, False to stop. Without a person to ask, an interrupt means stop."""
    if not sys.stdin.isatty():
        return False
    try:
        print("\n[d]etach and let it train, or [s]top it? [d] ", end="", flush=True)
        # In short waits: a Ctrl-C that comes just before a long one would go unnoticed until something is typed.
        while not select.select([sys.stdin], [], [], LOOK_S)[0]:
            pass
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        return False
    return bool(answer) and not answer.strip().lower().startswith("s")


@contextmanager
def _display(launched: RunHandle, *, quiet: bool) -> Iterator[Any]:
    if quiet:
        yield lambda line: None
    elif sys.stdout.isatty():
        with _live(launched) as on_line:
            yield on_line
    else:
        yield lambda line: print(shown(line), flush=True)


@contextmanager
def _live(launched: RunHandle) -> Iterator[Any]:
    """A progress bar under the lines. It reads the run's folder, so it shows the same wherever the run is."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[words]}"))
    over = threading.Event()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None, words="")

        def look() -> None:
            while not over.wait(LOOK_S):
                record = _progress(launched)
                if record:
                    total, done = record.get("steps"), record.get("step", 0)
                    progress.update(task, description=where(record), total=total, completed=done, words=words(record))

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()

        def on_line(line: LogLine) -> None:
            console.print(shown(line), markup=False)

        try:
            yield on_line
        finally:
            over.set()
            watcher.join()


def _progress(launched: RunHandle) -> dict[str, Any] | None:
    try:
        return launched.folder.progress()
    except HeadwayError:  # a passing trouble of the store: the bar stands still, the run does not care
        return None


def where(record: dict[str, Any]) -> str:
    epochs = f"/{record['epochs']}" if record.get("epochs") else ""
    return f"epoch {record['epoch'] + 1}{epochs}" if "epoch" in record else str(record.get("doing", "training"))


def words(record: dict[str, Any]) -> str:
    """Loss, speed and time left: what a person glances at."""
    parts = [f"{key} {record[key]:.3f}" for key in ("loss",) if isinstance(record.get(key), float)]
    if record.get("rate"):
        parts.append(f"{record['rate']:.1f} steps/s")
    if record.get("eta_s") is not None:
        parts.append(f"{duration(record['eta_s'])} left")
    return "  ".join(parts)


# `headway watch`: a run live in this terminal. Leaving it leaves the run alone.


KEPT = 200  # lines of log: more than any terminal is high
DRAW_S = 0.5
PLAIN_S = 10.0  # between lines of progress where there is no terminal
_LEAVE = set(b"qQ\x04")  # the last one: Ctrl-D; and escape, if it comes alone
_SEQUENCE = re.compile(rb"\x1b[\[O][0-9;]*[A-Za-z~]")  # arrows and the like: no wish to leave
FAREWELL = 5  # lines of log in what stays on the screen


def watch_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--plain", action="store_true", help="lines instead of a panel, as where there is no terminal")


def watch_command(args: argparse.Namespace) -> int:
    from headway.launcher.lifecycle import reach

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

    def __init__(self, launched: RunHandle) -> None:
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


def _panel(launched: RunHandle, follower: Follower) -> Outcome | None:
    """None where the watcher left before the run's end."""
    from rich.console import Console
    from rich.live import Live

    from headway.dashboard.terminal import RunPoller, Screen

    lookout = RunPoller(launched)
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


def _plain(launched: RunHandle, follower: Follower) -> Outcome:
    """Every line of log as it comes, a line of progress now and then, and every change of state."""
    from headway.dashboard.terminal import RunPoller

    lookout = RunPoller(launched)
    follower.on_line = lambda line: print(shown(line), flush=True)
    follower.start()
    said, said_at = "", time.monotonic() - PLAIN_S
    while not follower.over.wait(DRAW_S):
        view = lookout.look()
        state = view.status.state.value
        if (state, time.monotonic() - said_at > PLAIN_S) != (said, False):
            print(paint(_watch_summary(view), "dim"), flush=True)
            said, said_at = state, time.monotonic()
    return follower.outcome


def _watch_summary(view: RunSnapshot) -> str:
    """One line: state, where it is, what it costs, and what it prints of itself last."""
    from headway.dashboard.terminal import money, number, where

    curves = [f"{name} {number(trace.last)}" for name, trace in list(view.curves.items())[:4]]
    reason = f" ({view.trouble or view.status.reason})" if view.trouble or view.status.reason else ""
    return "  ".join([f"headway: {view.status.state.value}{reason}", *where(view), *curves, money(view)])
