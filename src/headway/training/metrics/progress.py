"""The progress line: live on a terminal, a plain line every ten seconds elsewhere; with the cost of the run so far.

A thread of rank 0 polls the run once a second and writes the buffered metrics; training never waits for it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from headway.core.errors import BadInput, StoreError
from headway.core.plan import BUDGET_USD, USD_PER_HOUR
from headway.rundir.layout import segment_interval_s
from headway.training.context import ControlChannel, log_line
from headway.training.step_times import TIMES

SPENT = "HEADWAY_SPENT_S"


class CostMeter:
    """The run's cost so far: the hourly price of all nodes times the duration of all attempts.

    HEADWAY_USD_PER_HOUR and HEADWAY_BUDGET_USD come from the plan, HEADWAY_SPENT_S from the supervisor when it starts
    the rank. Uses the monotonic clock from construction on: wall clocks may jump.
    """

    def __init__(self, env: Mapping[str, str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._budget = _number(env, USD_PER_HOUR), _number(env, BUDGET_USD)
        self._before, self._clock, self._began = _number(env, SPENT) or 0.0, clock, clock()

    @property
    def numbers(self) -> dict[str, float]:
        """`usd`, and `budget_usd` if there is a budget; empty if the run is not billed."""
        if not self._rate:
            return {}
        hours = (self._before + self._clock() - self._began) / 3600
        found = {"usd": round(hours * self._rate, 4)}
        return found if self._budget is None else {**found, "budget_usd": self._budget}


def format_cost(numbers: Mapping[str, object]) -> str:
    """Format the cost: $0.12 of $5.00"""
    usd, budget = numbers.get("usd"), numbers.get("budget_usd")
    if not isinstance(usd, float):
        return ""
    return f"${usd:.2f}" + (f" of ${budget:.2f}" if isinstance(budget, float) else "")


def _number(env: Mapping[str, str], name: str) -> float | None:
    text = env.get(name, "")
    try:
        return float(text) if text else None
    except ValueError:
        raise BadInput(f"{name}={text} is not a number", where=name) from None


POLL_S, LINE_INTERVAL_S, WINDOW = 1.0, 10.0, 20


class Reporter:
    """A thread that calls `read_progress` for the newest numbers, shows and reports them, and flushes the metrics."""

    def __init__(
        self,
        read_progress: Callable[[], dict[str, Any]],
        control: ControlChannel,
        flush: Callable[[], None],
        *,
        shown: bool = True,
    ) -> None:
        self._cost_meter = CostMeter(os.environ)
        self._read_progress, self._control, self._flush, self._shown = read_progress, control, flush, shown
        self._live = shown and sys.stderr.isatty()
        self._stopped = threading.Event()
        self._world = int(os.environ.get("WORLD_SIZE") or 1)
        self._recent_times: deque[tuple[float, int, dict[str, float]]] = deque(maxlen=WINDOW)
        self._recent_steps: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self._began = self._flushed = self._last_line_at = time.monotonic()
        self._warned = False
        self._thread = threading.Thread(target=self._run, name="headway-reporter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join(10)
        self._report_once()
        if self._live:
            sys.stderr.write("\r\033[K")

    def _run(self) -> None:
        while not self._stopped.wait(POLL_S):
            self._report_once()
            now = time.monotonic()
            if now - self._flushed > segment_interval_s(now - self._began):
                self._flushed = now
                self._write()

    def _write(self) -> None:
        try:
            self._flush()
            self._warned = False
        except StoreError as error:  # nothing is lost: the next flush writes it
            if not self._warned:
                log_line(f"metrics cannot be written now, retrying: {error}")
            self._warned = True

    def _report_once(self) -> None:
        numbers = self._read_progress()
        if not numbers:
            return
        now = time.monotonic()
        self._recent_steps.append((now, numbers["step"]))
        self._add_speed(numbers)
        self._add_waits(numbers, now)
        numbers |= self._cost_meter.numbers
        self._control.progress(**numbers)
        if self._live:
            sys.stderr.write(f"\r\033[K{progress_line(numbers)}")
            sys.stderr.flush()
        elif self._shown and (now - self._last_line_at >= LINE_INTERVAL_S):
            self._last_line_at = now
            log_line(progress_line(numbers))

    def _add_speed(self, numbers: dict[str, Any]) -> None:
        (then, before), (now, here) = self._recent_steps[0], self._recent_steps[-1]
        if now > then and here > before:
            rate = (here - before) / (now - then)
            numbers["rate"] = round(rate, 3)
            if numbers.get("steps"):
                numbers["eta_s"] = round((numbers["steps"] - here) / rate, 1)

    def _add_waits(self, numbers: dict[str, Any], now: float) -> None:
        """Add samples per second of all ranks, and the shares of this rank's time that it waited, by cause."""
        self._recent_times.append((now, TIMES.samples, dict(TIMES.waited_s)))
        then, samples, waited = self._recent_times[0]
        if now - then < POLL_S / 2:
            return
        seconds = now - then
        if TIMES.samples > samples:
            numbers["samples_s"] = round((TIMES.samples - samples) * self._world / seconds, 2)
        shares = {cause: round((total - waited[cause]) / seconds, 3) for cause, total in TIMES.waited_s.items()}
        if any(shares.values()):
            numbers["waits"] = shares


def progress_line(numbers: dict[str, Any]) -> str:
    """Format the progress line: epoch 2/20  step 130/2000  loss 1.234  12.3 steps/s  2 min left  $0.12 of $5.00"""
    parts = []
    if "epoch" in numbers:
        parts.append(f"epoch {numbers['epoch'] + 1}" + (f"/{numbers['epochs']}" if numbers.get("epochs") else ""))
    parts.append(f"step {numbers['step']}" + (f"/{numbers['steps']}" if numbers.get("steps") else ""))
    if numbers.get("doing"):
        parts.append(str(numbers["doing"]))
    if isinstance(numbers.get("loss"), float):
        parts.append(f"loss {numbers['loss']:.4g}")
    if numbers.get("rate"):
        parts.append(f"{numbers['rate']:.3g} steps/s")
    if numbers.get("eta_s") is not None:
        parts.append(f"{_duration(numbers['eta_s'])} left")
    if format_cost(numbers):
        parts.append(format_cost(numbers))
    return "  ".join(parts)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
