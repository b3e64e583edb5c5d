"""A run watched from a terminal: its words above, its progress below, and a way out that stops nothing by accident."""

from __future__ import annotations

import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from headway.cli.links import lines as page_lines
from headway.cli.logs import shown
from headway.cli.money import usd
from headway.cli.show import as_json, duration, paint
from headway.errors import FINISHED, HeadwayError
from headway.resuming import EXACT, UNKNOWN, again
from headway.targets.base import State

if TYPE_CHECKING:
    from headway.launcher import Launched, Outcome
    from headway.runfolder import RunFolder
    from headway.targets.base import LogLine

LOOK_S = 0.5  # how often the progress is read again


class _Dismissed(BaseException):
    """SIGTERM: whoever started this client wants it gone."""


def say(text: str) -> None:
    print(paint(f"headway: {text}", "dim"), file=sys.stderr)


def attach(launched: Launched, *, since: str = "", json: bool = False) -> int:
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


def conclusion(outcome: Outcome, launched: Launched) -> str:
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


def taken(launched: Launched) -> str:
    """What it took and cost, against what had been expected of it."""
    from headway.spent import spent_s, spent_usd

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


def explained(outcome: Outcome, launched: Launched) -> str:
    """Cause, evidence and what to type; or the last words of the first rank that failed."""
    from headway.cli.why import describe
    from headway.explain.why import why

    try:
        return describe(why(launched, outcome.status))
    except HeadwayError as error:  # a folder out of reach: that it failed has been said
        return f"  why: {error}"


def following(launched: Launched, state: State) -> str:
    """What one would most likely type next."""
    if state.resumable:
        return f"headway resume {launched.run}"
    if not state.ended:
        return f"headway logs {launched.run} -f"
    return f"headway {'eval' if launched.folder.plan().job.get('recipe') else 'pull'} {launched.run}"


def recorded_kind(folder: RunFolder) -> str:
    """How the run resumes; not known where its plan cannot be read."""
    from headway.planning.evidence import kind_of

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


def _summary(outcome: Outcome, launched: Launched) -> dict[str, Any]:
    status = outcome.status
    left = list(outcome.receipt.left) if outcome.receipt else None
    from headway.spent import spent_s, spent_usd

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
def _display(launched: Launched, *, quiet: bool) -> Iterator[Any]:
    if quiet:
        yield lambda line: None
    elif sys.stdout.isatty():
        with _live(launched) as on_line:
            yield on_line
    else:
        yield lambda line: print(shown(line), flush=True)


@contextmanager
def _live(launched: Launched) -> Iterator[Any]:
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


def _progress(launched: Launched) -> dict[str, Any] | None:
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
