"""The thread that renews the lease and polls for a stop request in the run folder."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.errors import HeadwayError, StoreError
from headway.rundir.layout import STOP, RunFolder
from headway.rundir.lease import RENEW_S, Lease
from headway.supervisor.background import BackgroundThread, StoreHealth
from headway.supervisor.event_loop import MessageQueue, StopRequested


@dataclass(frozen=True, slots=True)
class AttemptAdvanced:
    """The lease now has the next attempt number."""

    attempt: int


class Heartbeat(BackgroundThread):
    """Thread that renews the lease and polls for stop.json. No other thread touches the lease."""

    def __init__(
        self, folder: RunFolder, lease: Lease, inbox: MessageQueue, health: StoreHealth, *, renew_s: float = RENEW_S
    ) -> None:
        super().__init__("heartbeat", inbox, health)
        self._folder, self._lease, self._renew_s = folder, lease, renew_s
        self._advance = False
        self._stop_posted = False

    def advance(self) -> None:
        """Ask for the next attempt number; `AttemptAdvanced` is posted once the store has it."""
        self._advance = True
        self.wake()

    def work(self) -> None:
        if self._finishing:
            self._lease.release()
            return
        if self._advance:
            attempt = self._lease.advance()
            self._advance = False
            self._inbox.post(AttemptAdvanced(attempt))
        else:
            self._lease.renew()
        self._poll_stop_file()

    def interval_s(self) -> float:
        return self._renew_s

    def _poll_stop_file(self) -> None:
        if self._stop_posted:
            return
        reason = stop_reason(self._folder)
        if reason is not None:
            self._stop_posted = True
            self._inbox.post(StopRequested(reason))


def stop_reason(folder: RunFolder) -> str | None:
    """Return who requested a stop through the run folder's stop.json, or None."""
    try:
        request = folder.read_json(STOP)
    except StoreError:
        raise
    except HeadwayError:
        return "stop.json"  # an unreadable file still counts as a request
    if request is None:
        return None
    return " ".join(str(request[key]) for key in ("by", "reason") if request.get(key)) or "stop.json"
