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
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, Any

from headway.cli.dispatch import add_json, add_run, locate
from headway.cli.render import lines as page_lines
from headway.cli.render import print_status
from headway.core.errors import FINISHED, BadInput, HeadwayError
from headway.core.format import as_json, duration, paint, usd
from headway.core.plan import EXACT, UNKNOWN, describe_next_start
from headway.core.types import State

if TYPE_CHECKING:
    from headway.core.types import LogLine
    from headway.dashboard.terminal import RunSnapshot
    from headway.launcher.lifecycle import Outcome, RunHandle
    from headway.rundir.layout import RunFolder
    from headway.rundir.source_paths import SourcePaths


# `headway logs`: print a run's log, complete and in order; with -f, from before the run starts until it ends.


def logs_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing until the run ends")
    parser.add_argument("--rank", type=int, metavar="N", help="only this rank (default: all; -1: the supervisor)")
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N lines")
    parser.add_argument("--since", metavar="T", help="a duration (10m) or a time (2026-01-31T12:00)")
    add_json(parser)


def logs_command(args: argparse.Namespace) -> int:
    from headway.launcher.lifecycle import logs
    from headway.rundir.layout import RunFolder
    from headway.storage import open_store

    url = locate(args.run)
    start = since(args.since) if args.since else ""

    def chosen(*, follow: bool) -> Iterator[LogLine]:
        return (line for line in logs(url, follow=follow, rank=args.rank) if line.time >= start)

    # --tail applies to the lines that exist now; with -f, all later lines are shown.
    skipped = 0 if args.tail is None else max(0, sum(1 for _ in chosen(follow=False)) - args.tail)
    lines = islice(chosen(follow=args.follow), skipped, None)
    show = OwnPaths(RunFolder(open_store(url)))
    for line in lines:
        print(as_record(line) if args.json else format_line(show(line)), flush=args.follow)
    return 0


PATHS_WITHIN_S = 3.0


class OwnPaths:
    """Shows tracebacks with the user's own paths. Where the run's code is, is read once a traceback is seen."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._paths: SourcePaths | None = None

    def __call__(self, line: LogLine) -> LogLine:
        if line.rank < 0 or ' File "' not in line.text:
            return line
        if self._paths is None:
            self._paths = self._wait_for_paths()
        return replace(line, text=self._paths.translate(line.text))

    def _wait_for_paths(self) -> SourcePaths:
        """Return the paths. The first lines of a run can be here before the event that says where its code is."""
        from headway.core.retry import poll
        from headway.rundir.source_paths import SourcePaths

        found = SourcePaths()
        for _ in poll(0.2, within_s=PATHS_WITHIN_S):
            found = SourcePaths.of(self._folder)
            if found.folder:
                break
        return found


def format_line(line: LogLine) -> str:
    if line.rank < 0:
        return paint(f"headway: {line.text}", "dim")
    return f"[{line.rank}] {line.text}" if line.rank else line.text


def since(text: str) -> str:
    """Return the time that --since names, in the format of log lines."""
    from headway.spec.units import parse_duration

    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return moment.astimezone(timezone.utc).isoformat()
    except ValueError:
        pass
    try:
        seconds = parse_duration(text)
    except ValueError:
        raise BadInput(f"--since {text} is neither a duration nor a time", fix="--since 10m") from None
    return (datetime.now(timezone.utc) - timedelta(seconds=seconds)).isoformat()


def as_record(line: LogLine) -> str:
    return json.dumps({"rank": line.rank, "time": line.time, "text": line.text}, ensure_ascii=False)


POLL_S = 0.5  # how often the progress is read again
STARTING = "starting"
PROGRESS = re.compile(r"headway: (?:epoch \d+(?:/\d+)?  )?step \d+(?:/\d+)?(?:  |$)")  # as training.metrics.progress


class _Detached(BaseException):
    """Raised on SIGTERM: end this client and leave the run alone."""


def attach(run: RunHandle, *, since: str = "", json: bool = False, rerun: str = "headway run") -> int:
    """Follow the run to its end and return its exit code. Ctrl-C asks once; a second one stops the run. SIGTERM ends
    this client alone.

    Lines printed before `since`, by earlier attempts, are not shown again. `rerun` is the command that starts the job
    anew, for a run whose script failed.
    """
    print_status(f"run {run.run}, folder {run.url}{page_lines(run)}")
    try:
        with _detach_on_sigterm(), _display(run, quiet=json) as show, _narrated(run, quiet=json):
            own = OwnPaths(run.folder)
            outcome = run.wait(lambda line: show(own(line)) if line.time >= since and not _is_end_line(line) else None)
    except _Detached:
        print_status(_detached_text(run.run))
        return 128 + signal.SIGTERM
    except KeyboardInterrupt:
        if _ask_detach():
            print(f"\n{_detached_text(run.run)}")
            return FINISHED
        print_status(f"stopping{resume_note(recorded_kind(run.folder))}")
        outcome = run.stop("Ctrl-C")
    summary = as_json(_summary(outcome, run)) if json else conclusion(outcome, run, rerun=rerun, shown=True)
    print(summary)
    return outcome.exit_code


_ENDS = frozenset(state.value for state in State if state.ended)


def _is_end_line(line: LogLine) -> bool:
    """Return whether this is the supervisor's last line, whose content `conclusion` prints."""
    return line.rank < 0 and line.text.partition(":")[0] in _ENDS


@contextmanager
def _detach_on_sigterm() -> Iterator[None]:
    def detach(number: int, frame: FrameType | None) -> None:
        raise _Detached

    before = signal.signal(signal.SIGTERM, detach)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _detached_text(run: str) -> str:
    return f"{run} goes on without this terminal.   next: headway logs {run} -f   or   headway stop {run}"


def conclusion(outcome: Outcome, run_handle: RunHandle, *, rerun: str = "headway run", shown: bool = False) -> str:
    """Format how the run ended, why it failed, and the next command. `shown`: its log is already on the screen."""
    run, state, reason = outcome.run, outcome.status.state, outcome.status.reason
    good = outcome.exit_code == FINISHED
    head = f"{run} {state.value}{time_and_cost(run_handle) if state.ended else ''}"
    head += f": {reason}" if reason and state is not State.FINISHED else ""
    lines = [paint(head, "green" if good else "red" if outcome.exit_code == 1 else "yellow")]
    following = next_for(run_handle, state)
    if state in (State.FAILED, State.LOST):
        cause, following = with_cause(outcome, run_handle, rerun=rerun, shown=shown)
        lines += cause
    if outcome.receipt and outcome.receipt.left:
        lines.append(f"still there: {', '.join(outcome.receipt.left)}   fix: headway down {run}")
    if outcome.receipt and outcome.receipt.unverified:
        lines.append(f"could not verify that it was removed: {', '.join(outcome.receipt.unverified)}")
    if following.startswith("headway resume"):
        lines += resume_text(recorded_kind(run_handle.folder), state)
    return "\n".join([*lines, *([f"next: {following}"] if following else [])])


def time_and_cost(launched: RunHandle) -> str:
    """Format time and cost, with the plan's estimate: " after 7m, $0.12 (estimate: 8m, $0.14)"."""
    from headway.rundir.spending import Spending

    try:
        spent = Spending.of(launched.folder)
    except HeadwayError:  # unreachable, or damaged: the state has been printed
        return ""
    text = f" after {duration(spent.seconds)}" + (f", {usd(spent.usd)}" if spent.usd is not None else "")
    if spent.expected_s is None:
        return text
    money = f", {usd(spent.expected_usd)}" if spent.expected_usd is not None else ""
    return f"{text} (estimate: {duration(spent.expected_s)}{money})"


def with_cause(outcome: Outcome, launched: RunHandle, *, rerun: str, shown: bool) -> tuple[list[str], str]:
    """Return cause, evidence and fix if a rule knows the failure, else the log's last lines, unless `shown`.

    Also return the next command; empty if the fix names it.
    """
    from headway.cli.inspect import after_failure, describe_cause, not_sent_notes
    from headway.diagnose.diagnosis import diagnose_run

    try:
        found = diagnose_run(launched, outcome.status)
        several = launched.folder.plan().nodes * launched.folder.plan().processes > 1
    except HeadwayError as error:  # the folder is unreachable: the failure itself has been printed
        return [f"  cause unknown: {error}"], f"headway why {launched.run}"
    following, notes = after_failure(launched.folder, found, rerun=rerun), not_sent_notes(launched.folder)
    if not found.name and shown:
        first = f"  first failure: rank {found.rank}   log: headway logs {launched.run} --rank {found.rank}"
        return [*([first] if several and found.rank is not None else []), *notes], following
    return [describe_cause(found), *notes], following


def next_for(launched: RunHandle, state: State) -> str:
    """Return the command that a user most likely wants next; "" if there is none."""
    from headway.rundir.status import next_command

    try:
        return next_command(launched.folder, launched.folder.plan(), state)
    except HeadwayError:  # the plan is damaged or unreachable
        return f"headway status {launched.run}"


def recorded_kind(folder: RunFolder) -> str:
    """Return how the run resumes; UNKNOWN if its plan cannot be read."""
    from headway.packaging.resume_evidence import kind_of

    try:
        return kind_of(folder.plan())
    except HeadwayError:
        return UNKNOWN


def resume_text(kind: str, state: State) -> list[str]:
    """Return a line that describes what a resume does."""
    return [f"on resume, {describe_next_start(kind)}"] if state.resumable else []


def resume_note(kind: str) -> str:
    """Return a note that a checkpoint is written before a stop; empty for a script that handles stops itself."""
    return ": a checkpoint is written first" if kind == EXACT else ""


def _summary(outcome: Outcome, launched: RunHandle) -> dict[str, Any]:
    status = outcome.status
    left = list(outcome.receipt.left) if outcome.receipt else None
    from headway.rundir.spending import Spending

    spent = Spending.of(launched.folder)
    return {
        "spent": {"seconds": round(spent.seconds, 3), "usd": None if spent.usd is None else round(spent.usd, 4)},
        "run": outcome.run,
        "url": launched.url,
        "state": status.state.value,
        "reason": status.reason,
        "resume": recorded_kind(launched.folder),
        "left": left,
    }


NARRATE_S, _QUIET_S = 3.0, 4.0  # between looks at a run that waits; how long a start may take without a word


@contextmanager
def _narrated(run: RunHandle, *, quiet: bool) -> Iterator[None]:
    """Say what happens while the run is not running, or waits: the target's reason and its events, each once."""
    over = threading.Event()
    narrator = threading.Thread(target=_narrate, args=(run, over), name="headway-narrate", daemon=True)
    if not quiet:
        narrator.start()
    try:
        yield
    finally:
        over.set()


def _narrate(run: RunHandle, over: threading.Event, say: Callable[[str], None] = print_status) -> None:
    from headway.rundir.overview import RunOverview

    said: set[str] = set()
    wait = _QUIET_S
    while not over.wait(wait):
        wait = NARRATE_S
        try:
            status = run.current_status()
            shown = RunOverview.of(run.folder, status=status)
            waits = status.state is State.PENDING or (shown.condition or {}).get("kind") == "waiting"
            news = [*run.target.startup_events(run.target_handle), shown.status.reason] if waits else []
        except HeadwayError:  # unreachable at the moment: ask again
            continue
        if status.state.ended:
            return
        wait = NARRATE_S if waits else 3 * NARRATE_S
        for text in news:
            key = re.sub(r"[0-9]+", "0", text)  # a text that differs by a time or a count alone is no news
            if text and key not in said and not over.is_set():
                said.add(key)
                say(text)


def _ask_detach() -> bool:
    """Ask whether to detach (True) or to stop (False). Without a terminal, stop."""
    if not sys.stdin.isatty():
        return False
    try:
        print("\n[d]etach and keep it running, or [s]top it? [d] ", end="", flush=True)
        # Wait in short intervals: a Ctrl-C just before a long wait would have no effect until a key is pressed.
        while not select.select([sys.stdin], [], [], POLL_S)[0]:
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
        yield lambda line: print(format_line(line), flush=True)


@contextmanager
def _live(launched: RunHandle) -> Iterator[Any]:
    """Show a progress bar below the log. It reads the run folder, so it works on every target.

    The run's own progress lines are left out, because the bar shows them. A script that reports no progress has no bar.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[words]}"))
    over = threading.Event()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(STARTING, total=None, words="")

        def poll() -> None:
            while not over.wait(POLL_S):
                record = _progress(launched)
                if record:
                    total, done = record.get("steps"), record.get("step", 0)
                    progress.update(task, total=total, completed=done, description=position_text(record), visible=True,
                                    words=metrics_text(record))  # fmt: skip

        watcher = threading.Thread(target=poll, daemon=True)
        watcher.start()

        def on_line(line: LogLine) -> None:
            if line.rank >= 0 and progress.tasks[0].description == STARTING:
                progress.update(task, visible=False, refresh=True)
            if line.rank != 0 or not PROGRESS.match(line.text):
                console.print(format_line(line), markup=False)

        try:
            yield on_line
        finally:
            over.set()
            watcher.join()


def _progress(launched: RunHandle) -> dict[str, Any] | None:
    try:
        record = launched.folder.progress() or {}
        return record if record.keys() & {"step", "epoch", "doing"} else None  # a program that reports nothing
    except HeadwayError:  # the store is unreachable at the moment: leave the bar unchanged
        return None


def position_text(record: dict[str, Any]) -> str:
    epochs = f"/{record['epochs']}" if record.get("epochs") else ""
    return f"epoch {record['epoch'] + 1}{epochs}" if "epoch" in record else str(record.get("doing", "training"))


def metrics_text(record: dict[str, Any]) -> str:
    """Format step, loss, speed, time left and cost."""
    from headway.rundir.spending import of_budget

    total = f"/{record['steps']}" if record.get("steps") else ""
    parts = [f"step {record['step']}{total}"] if "step" in record else []
    parts += [f"{key} {record[key]:.3f}" for key in ("loss",) if isinstance(record.get(key), float)]
    if record.get("rate"):
        parts.append(f"{record['rate']:.1f} steps/s")
    if record.get("eta_s") is not None:
        parts.append(f"{duration(record['eta_s'])} left")
    if isinstance(record.get("usd"), float):
        parts.append(of_budget(record["usd"], record.get("budget_usd"), usd))
    return "  ".join(parts)


# `headway watch`: show a run live in this terminal. Quitting does not affect the run.


KEPT_LINES = 200  # lines of log: more than any terminal is high
DRAW_S = 0.5
PLAIN_S = 10.0  # between lines of progress where there is no terminal
_DETACH_KEYS = set(b"qQ\x04")  # the last one: Ctrl-D; and escape, if it comes alone
_SEQUENCE = re.compile(rb"\x1b[\[O][0-9;]*[A-Za-z~]")  # arrow keys and the like do not quit
DETACH_HINT = 5  # lines of log in what stays on the screen


def watch_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--plain", action="store_true", help="print lines instead of a panel, as without a terminal")


def watch_command(args: argparse.Namespace) -> int:
    from headway.launcher.lifecycle import open_run

    launched = open_run(locate(args.run), say=print_status)
    follower = Follower(launched)
    live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not args.plain
    try:
        outcome = _panel(launched, follower) if live else _plain(launched, follower)
    except KeyboardInterrupt:
        outcome = None
    if outcome is None:
        commands = f"headway watch {launched.run}   or   headway stop {launched.run}"
        print(f"{launched.run} goes on without this terminal.   next: {commands}")
        return FINISHED
    print(conclusion(outcome, launched))
    return outcome.exit_code


class Follower:
    """Follows a run to its end in a thread, so that drawing never waits for a store."""

    def __init__(self, launched: RunHandle) -> None:
        self.lines: deque[LogLine] = deque(maxlen=KEPT_LINES)
        self.on_line: Callable[[LogLine], None] = self.lines.append
        self.ended = threading.Event()
        self._launched = launched
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._follow, name="headway-follow", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def outcome(self) -> Outcome:
        """Return the outcome after the end of the run. Raises the error that ended following it."""
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
            self.ended.set()


def _panel(launched: RunHandle, follower: Follower) -> Outcome | None:
    """Show the panel until the run ends. Returns None if the user quits before that."""
    from rich.console import Console
    from rich.live import Live

    from headway.dashboard.terminal import RunPoller, Screen

    lookout = RunPoller(launched)
    console = Console(highlight=False)
    follower.start()

    def drawn(*, now: bool = False) -> Screen:
        return Screen(lookout.poll(now=now), list(follower.lines), "q quits; the run keeps running")

    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while not follower.ended.is_set():
            live.update(drawn(), refresh=True)
            if pressed(DRAW_S):
                return None
    console.print(Screen(lookout.poll(now=True), list(follower.lines), max_log_lines=DETACH_HINT))
    return follower.outcome


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Yield `pressed(seconds)`, which waits that long for a key that quits. Keys are not echoed meanwhile."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield lambda seconds: _read_key(fd, seconds)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _read_key(fd: int, seconds: float) -> bool:
    if not select.select([fd], [], [], seconds)[0]:
        return False
    keys = os.read(fd, 1024)
    return not keys or keys == b"\x1b" or bool(_DETACH_KEYS & set(_SEQUENCE.sub(b"", keys)))


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _plain(launched: RunHandle, follower: Follower) -> Outcome:
    """Print each log line as it arrives, each change of state, and a progress line every PLAIN_S seconds."""
    from headway.dashboard.terminal import RunPoller

    lookout = RunPoller(launched)
    follower.on_line = lambda line: print(format_line(line), flush=True)
    follower.start()
    printed_state, printed_at = "", time.monotonic() - PLAIN_S
    while not follower.ended.wait(DRAW_S):
        view = lookout.poll()
        state = view.status.state.value
        if (state, time.monotonic() - printed_at > PLAIN_S) != (printed_state, False):
            print(paint(_watch_summary(view), "dim"), flush=True)
            printed_state, printed_at = state, time.monotonic()
    return follower.outcome


def _watch_summary(view: RunSnapshot) -> str:
    """Format one line: state, progress, cost and newest metrics."""
    from headway.dashboard.terminal import money, number, where

    curves = [f"{name} {number(trace.last)}" for name, trace in list(view.curves.items())[:4]]
    reason = f" ({view.error or view.status.reason})" if view.error or view.status.reason else ""
    return "  ".join([f"headway: {view.status.state.value}{reason}", *where(view), *curves, money(view)])
