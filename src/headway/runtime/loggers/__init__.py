"""Metrics for trackers besides the run folder: W&B, TensorBoard, MLflow. Fed on rank 0, never waited for.

The run folder's segments are the truth. A tracker is given the same records by a process of its own, so that nothing it
does (block, crash, print, take signals, hold the interpreter) reaches the training. One that fails is said once, tried
again after a pause, and then given what it missed out of the segments.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.runtime.loggers.line import Line
    from headway.runtime.session import Session


class Loggers:
    """All trackers of a run; without any, nothing."""

    def __init__(self, lines: Sequence[Line] = ()) -> None:
        self._lines = lines

    def feed(self, records: Sequence[dict[str, Any]]) -> None:
        """Records that are in the run folder now. Returns at once."""
        for line in self._lines:
            line.feed(records)

    def close(self, *, finished: bool, within_s: float) -> None:
        """Let them end. Whatever is not done in time is taken from the segments by the next attempt."""
        for line in self._lines:
            line.close(finished=finished)
        until = time.monotonic() + within_s
        for line in self._lines:
            line.join(max(0.0, until - time.monotonic()))


def open_loggers(session: Session, resume_step: int) -> Loggers:
    """The trackers that the job's `log_to` names, for an attempt that goes on from `resume_step`."""
    names = session.identity.job.log_to
    if not names:
        return Loggers()
    from headway.runtime.loggers.line import Line
    from headway.runtime.loggers.tracked import Tracked, tracked

    def told() -> Tracked:
        return tracked(session.store, session.identity, resume_step)

    return Loggers([Line(name, told, say=session.say, event=session.event) for name in names])
