"""Decide whether a run is stalled, from what its ranks report and from how busy their processes are. Pure.

A rank of Headway's loop reports its step and its phase once a second, so a step that takes much longer than those
before is noticed soon. A program that only prints is silent for as long as it likes: it counts as stalled only if it
uses no CPU and moves no bytes either. The first time of a phase (a compilation, a download, the first evaluation) has
no usual duration, so it needs idle processes too.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

UNIT_S = 30.0  # added to twice the usual duration of a step; the other limits are multiples of it
STEP, OUTPUT, START = "step", "output", "start"
_REMEMBERED = 200  # durations per phase
_BUSY_CORES, _BUSY_BYTES_PER_S = 0.05, 100_000.0
_GAP_S = 10.0  # a pause between two checks that is longer was a pause of this process, not of the ranks


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the rank processes of a node are, with all processes below them."""

    cores: float = 0.0
    bytes_per_s: float = 0.0
    stopped: tuple[int, ...] = ()  # ranks that SIGSTOP has stopped

    @property
    def busy(self) -> bool:
        return self.cores > _BUSY_CORES or self.bytes_per_s > _BUSY_BYTES_PER_S

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Load:
        return cls(
            cores=float(record.get("cores", 0.0)),
            bytes_per_s=float(record.get("bytes_per_s", 0.0)),
            stopped=tuple(record.get("stopped", ())),
        )


@dataclass(frozen=True, slots=True)
class Stall:
    """A run that makes no progress."""

    phase: str
    silent_s: float
    usual_s: float | None  # the longest duration of this phase so far
    act: bool  # long enough to restart or end it

    def __str__(self) -> str:
        usual = "" if self.usual_s is None else f" (usually at most {_short(self.usual_s)})"
        if self.phase == OUTPUT:
            return f"no output, progress or activity for {_short(self.silent_s)}{usual}"
        what = {STEP: "no step", START: "no first step"}.get(self.phase, f"{self.phase} takes")
        return f"{what} {'for ' if what.startswith('no') else ''}{_short(self.silent_s)}{usual}"


@dataclass(frozen=True, slots=True)
class _Limits:
    """How long the ranks may be idle, and without progress, before a stall is reported; and before it is acted on."""

    idle_s: float
    silent_s: float
    act_idle_s: float
    act_silent_s: float


class Watchdog:
    """Watches one attempt after another; durations learned in one count in the next."""

    def __init__(
        self, *, stall_s: float | None = None, unit_s: float = UNIT_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`stall_s`: the job's `stall`, instead of what is learned."""
        self._stall_s, self._unit_s, self._clock = stall_s, unit_s, clock
        self._durations: dict[str, deque[float]] = {}
        self.begin()

    def begin(self) -> None:
        """Begin an attempt: nothing has been reported yet."""
        self._since = self._checked = self._busy_at = self._clock()
        self._phase, self._place = START, None
        self._loads: dict[int, Load] = {}
        self._reports = False  # whether the ranks report their phase

    _place: tuple[Any, ...] | None

    def report(self, step: int, phase: str, epoch: Any = None) -> None:
        """Take a report of Headway's loop: where it is now."""
        place = (step, phase, epoch)
        if not self._reports:
            self._reports, self._place = True, place
            self._advance(phase)
        elif place != self._place:
            self._place = place
            self._advance(phase)

    def activity(self) -> None:
        """Take a sign of life of a program that reports no phases: output, a metric, a step."""
        if not self._reports:
            self._advance(OUTPUT)

    def load(self, node: int, load: Load) -> None:
        """Take a node's load. The ranks are idle from when no node is busy, or one of them is stopped."""
        self._loads[node] = load
        loads = self._loads.values()
        if any(each.busy for each in loads) and not any(each.stopped for each in loads):
            self._busy_at = self._clock()

    def forget(self, node: int) -> None:
        self._loads.pop(node, None)

    def check(self) -> Stall | None:
        """Return the stall, if there is one. Call about once a second."""
        now = self._clock()
        gap, self._checked = now - self._checked, now
        if gap > _GAP_S:
            self._since += gap
            self._busy_at += gap
        if not self._loads:
            self._busy_at = now
        silent_s, idle_s, limits = now - self._since, now - max(self._since, self._busy_at), self._limits()
        if idle_s < limits.idle_s and silent_s < limits.silent_s:
            return None
        act = idle_s >= limits.act_idle_s or silent_s >= limits.act_silent_s
        return Stall(self._phase, silent_s, self._usual_s(), act)

    def _advance(self, phase: str) -> None:
        now = self._clock()
        if self._phase != START:
            self._durations.setdefault(self._phase, deque(maxlen=_REMEMBERED)).append(now - self._since)
        self._phase, self._since = phase, now

    def _usual_s(self) -> float | None:
        known = self._durations.get(self._phase)
        return max(known) if known else None

    def _limits(self) -> _Limits:
        found, chosen = self._learned_limits(), self._stall_s
        if chosen is None:
            return found
        silent_s = chosen if self._phase in (STEP, OUTPUT) else 3 * chosen
        return _Limits(min(found.idle_s, chosen), min(found.silent_s, silent_s), chosen, silent_s)

    def _learned_limits(self) -> _Limits:
        unit, usual = self._unit_s, self._usual_s()
        if usual is None:
            return _Limits(10 * unit, math.inf, math.inf, math.inf)
        if self._phase == OUTPUT:
            return _Limits(max(10 * unit, 3 * usual), math.inf, max(60 * unit, 10 * usual), math.inf)
        times, floor, slack = (10, 20 * unit, unit) if self._phase == STEP else (5, 60 * unit, 2 * unit)
        act_s = max(floor, times * usual)
        return _Limits(slack + 2 * usual, act_s, act_s, act_s)


def _short(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
