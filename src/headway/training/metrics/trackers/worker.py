"""A tracker's process, started by rank 0: `python -m headway.training.metrics.trackers.worker NAME PARENT`.

It reads JSON lines and answers each: first the run's information, then records, finally {"close": finished}. It dies
with rank 0, whatever is pending: the next attempt's process reads what was not sent from the segments.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

from headway.core.errors import BadInput, HeadwayError, MissingExtra
from headway.plugins import TRACKERS
from headway.plugins.registry import declare, is_path
from headway.rundir.layout import RunFolder, segments
from headway.storage import open_store
from headway.training.metrics.trackers.base import Tracker, TrackerRunInfo

_PR_SET_PDEATHSIG = 1
_NOT_VALUES = ("step", "time")
ALIVE_S = 1.0  # interval of its heartbeats during long requests


class StepMerger:
    """Passes on each step once and complete: when a later step arrives, or when the run is finished.

    A step's values may arrive in pieces (the loss, then a score), and the next attempt repeats an interrupted
    evaluation. Trackers cannot add to a step that they have closed.
    """

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._pending: dict[str, Any] | None = None

    def add(self, record: Mapping[str, Any]) -> None:
        pending = self._pending
        if pending is not None and record["step"] < pending["step"]:
            return  # a duplicate: read from the segments, then handed over again
        if pending is None or record["step"] > pending["step"]:
            self.finish()
            self._pending = dict(record)
        else:
            pending.update(record)

    def finish(self) -> None:
        if self._pending is not None:
            self._send(self._pending)
            self._pending = None


class TrackerWorker:
    """Sends records to one tracker."""

    def __init__(self, tracker: Tracker, send_heartbeat: Callable[[], None]) -> None:
        self._tracker, self._send_heartbeat = tracker, send_heartbeat
        self._steps = StepMerger(self._log)
        self._last_heartbeat = time.monotonic()

    def send(self, records: Iterable[Mapping[str, Any]]) -> None:
        for record in records:
            self._steps.add(record)
        self._tracker.flush()

    def close(self, *, finished: bool) -> None:
        if finished:
            self._steps.finish()
        self._tracker.close(finished=finished)

    def _log(self, record: dict[str, Any]) -> None:
        if time.monotonic() - self._last_heartbeat > ALIVE_S:
            self._last_heartbeat = time.monotonic()
            self._send_heartbeat()
        step, tracker = int(record["step"]), self._tracker
        values = {name: number(value) for name, value in record.items() if name not in _NOT_VALUES}
        unknown = {name: value for name, value in values.items() if not tracker.knows(name, step)}
        if unknown:
            tracker.log(step, float(record.get("time", 0.0)), unknown)


def number(value: Any) -> float:
    """Convert a logged value to a float. JSON has no NaN, so segments contain it as a string."""
    return float(value) if isinstance(value, str) else value


def unsent_records(run_info: TrackerRunInfo) -> Iterator[dict[str, Any]]:
    """Return the run's merged history so far, without what earlier attempts logged beyond the resume step."""
    folder = RunFolder(open_store(run_info.url))
    begun = any(segment.attempt == run_info.attempt for segment in segments(folder.store, "metrics"))
    last = math.inf if begun else run_info.resume_step
    return (record for record in folder.metrics() if record["step"] <= last)


def open_tracker(name: str, run_info: TrackerRunInfo) -> Tracker:
    if is_path(name):  # the rank that started this process runs the same code
        declare(name, os.environ.get("HEADWAY_CODE_DIR") or os.getcwd())
    if name not in TRACKERS:
        raise BadInput(f"no tracker is called {name!r} here", fix=TRACKERS.suggest(name))
    tracker: Tracker = TRACKERS[name].load()(run_info)
    return tracker


def serve(name: str, requests: IO[str], reply: Callable[[dict[str, Any]], None]) -> None:
    """Answer requests until the close request or the end of the input."""
    run_info = TrackerRunInfo(**json.loads(requests.readline()))
    tracker = open_tracker(name, run_info)
    worker = TrackerWorker(tracker, lambda: reply({"alive": True}))
    reply({"where": tracker.where})
    caught_up = False
    for line in requests:
        message = json.loads(line)
        if not caught_up:
            worker.send(unsent_records(run_info))
            caught_up = True
        if "close" in message:
            worker.close(finished=message["close"])
            reply({"done": True})
            return
        worker.send(message["records"])
        reply({"done": True})


def main() -> int:
    name, parent = sys.argv[1], int(sys.argv[2])
    _die_with_parent(parent)
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keep what the tracker prints out of the answers

    def reply(message: dict[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")

    try:
        serve(name, sys.stdin, reply)
    except HeadwayError as error:
        reply({"failed": str(error)})
        return 1
    except ModuleNotFoundError as error:
        missing = MissingExtra("loggers", needed_for=f"log_to: [{name}]", package=error.name or "a package")
        reply({"failed": str(missing)})
        return 1
    except Exception as error:  # noqa: BLE001  reported to the rank, then the process ends
        reply({"failed": f"{type(error).__name__}: {error}"})
        return 1
    return 0


def _die_with_parent(parent: int) -> None:
    """Leave this process's end to the rank: ignore signals to the process group, and die with the rank."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the rank died before prctl took effect
        os._exit(1)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # skip exit handlers: a client that waits for its server must not delay the rank's end
