"""Ending a run's processes: ask, wait, force, look again. The receipt is what the second look found."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator

from headway.targets.base import Receipt
from headway.targets.labelled import Process, roots

FORCE_S = 10.0  # for what was killed to go: a process in the kernel's hands goes when its disk answers
FIRST_LOOK_S, LONGEST_LOOK_S = 0.02, 0.5  # a quick end is seen quickly, and a long one costs little


def take_down(
    run: str,
    listing: Callable[[], list[Process]],
    *,
    known: Iterable[Process] = (),
    ask_after_s: float = 0.0,
    grace_s: float,
) -> Receipt:
    """SIGTERM to each root, once; what is left after `grace_s` is killed. Stragglers that appear meanwhile too.

    `known` is what was recorded as created: it stands in the receipt though it may be long gone. What is about to go
    by itself is given `ask_after_s`.
    """
    seen = {_identity(process): process for process in known}
    asked: set[tuple[int, str]] = set()

    def remaining() -> list[Process]:
        # What was seen once is followed to its end, even if its label can no longer be read.
        for process in listing():
            seen.setdefault(_identity(process), process)
        return [process for process in seen.values() if process.alive]

    for left, waited_s in _looks(remaining, within_s=ask_after_s + grace_s):
        for process in roots(left) if waited_s >= ask_after_s else []:
            if _identity(process) not in asked:
                asked.add(_identity(process))
                process.send(signal.SIGTERM)
    for left, _ in _looks(remaining, within_s=FORCE_S):
        for process in left:
            process.send(signal.SIGKILL)
    stayed = {_identity(process) for process in remaining()}
    return Receipt(
        run=run,
        created=tuple(map(str, seen.values())),
        removed=tuple(str(process) for key, process in seen.items() if key not in stayed),
        left=tuple(str(process) for key, process in seen.items() if key in stayed),
    )


def _identity(process: Process) -> tuple[int, str]:
    return process.pid, process.started


def _looks(remaining: Callable[[], list[Process]], *, within_s: float) -> Iterator[tuple[list[Process], float]]:
    """What is left, and how long it has been waited for, again and again until nothing is or the time is over."""
    began, pause = time.monotonic(), FIRST_LOOK_S
    while (waited_s := time.monotonic() - began) < within_s and (left := remaining()):
        yield left, waited_s
        time.sleep(pause)
        pause = min(LONGEST_LOOK_S, pause * 1.3)
