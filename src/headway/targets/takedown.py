"""Ending a run's processes: ask, wait, force, look again. The receipt is what the second look found."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable

from headway.targets.base import Receipt
from headway.targets.labelled import Process, roots

POLL_S = 0.05
FORCE_S = 10.0  # for what was killed to go: a process in the kernel's hands goes when its disk answers


def take_down(
    run: str,
    listing: Callable[[], list[Process]],
    *,
    known: Iterable[Process] = (),
    ask_after_s: float = 0.0,
    grace_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Receipt:
    """SIGTERM to each root, once; what is left after `grace_s` is killed. Stragglers that appear meanwhile too.

    `known` is what was recorded as created: it stands in the receipt though it may be long gone. What is about to go
    by itself is given `ask_after_s`.
    """
    seen = {(process.pid, process.started): process for process in known}
    asked: set[tuple[int, str]] = set()

    def remaining() -> list[Process]:
        # What was seen once is followed to its end, even if its label can no longer be read.
        for process in listing():
            seen.setdefault((process.pid, process.started), process)
        return [process for process in seen.values() if process.alive]

    began = clock()
    while (left := remaining()) and clock() < began + ask_after_s + grace_s:
        for process in roots(left) if clock() >= began + ask_after_s else []:
            if (process.pid, process.started) not in asked:
                asked.add((process.pid, process.started))
                process.send(signal.SIGTERM)
        time.sleep(POLL_S)
    deadline = clock() + FORCE_S
    while (left := remaining()) and clock() < deadline:
        for process in left:
            process.send(signal.SIGKILL)
        time.sleep(POLL_S)
    names = {key: str(process) for key, process in seen.items()}
    stayed = {(process.pid, process.started) for process in left}
    return Receipt(
        run=run,
        created=tuple(names.values()),
        removed=tuple(name for key, name in names.items() if key not in stayed),
        left=tuple(name for key, name in names.items() if key in stayed),
    )
