"""Combine what a program's lines say into its progress and its metrics.

Lines come from `TerminalLines`: complete ones, and bars that still move; `progress_parser` reads one line, and
`output_observer` reports the result to the run folder's progress.json. Steps are counted over all epochs: a bar that
begins again continues the count. A pattern of the user's is stopped after `PATTERN_S`, and reading takes at most a
tenth of the time (`_SHARE`), so that no output can stall the supervisor.
"""

from __future__ import annotations

import math
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from headway.core.errors import HeadwayError
from headway.supervisor.progress_parser import MAX_CHARS, Bar, LineReading, parse_line

MAX_METRICS = 200  # different names; more are most likely not metrics
PATTERN_S = 0.1
_SHARE, _MOST_CREDIT_S = 0.1, 0.5
_POSITION = ("step", "steps", "epoch", "epochs")
_RESERVED = frozenset({*_POSITION, "time", "resume_step", "resume_attempt"})
_WINDOW = 20
_WAIT_S = 1.0  # for a bar that was cleared to write a line

Note = Callable[[str], None]


class OutputReader:
    """Reader of rank 0's output: give it lines with `read` and `read_live`, take `progress` and `take_metrics`."""

    def __init__(
        self,
        sources: frozenset[str],
        patterns: Sequence[str] = (),
        *,
        note: Note = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources, self._note, self._clock = sources, note, clock
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._unplaced = 0  # records without a step, which are counted instead
        self._position = _Position(clock)
        self._waiting: list[tuple[int | None, Mapping[str, float]]] = []  # values of the next state of the bar
        self._waiting_since = 0.0
        self._live: dict[str, int | None] = {}  # lines on the screen, and the step at which each appeared
        self._records: list[dict[str, Any]] = []
        self._names: set[str] = set()
        self._latest: dict[str, float] = {}
        self._began = self._metrics_at = clock()
        self._credit_s, self._credited = _MOST_CREDIT_S, clock()
        self._too_fast = False

    def read(self, lines: bytes) -> None:
        """Read complete lines. What comes faster than it can be read is left out, which is noted once."""
        if not self._has_time():
            return
        started = time.perf_counter()
        for text in lines.decode("utf-8", "replace").split("\n"):
            if text:
                self._read_line(text[:MAX_CHARS])
            if time.perf_counter() - started > self._credit_s:
                self._note_too_fast()
                break
        self._credit_s -= time.perf_counter() - started

    def read_live(self, lines: Sequence[str]) -> None:
        """Read the lines on the screen that may still change, from top to bottom. Unchanged ones are not read again."""
        now, seen = self._clock(), self._live
        due = now - self._metrics_at >= max(1.0, (now - self._began) / 500)
        lines = [text[:MAX_CHARS] for text in lines]
        readings = {text: reading for text in lines if (reading := parse_line(text, self._sources)) is not None}
        self._position.see_bars([reading.bar for reading in readings.values() if reading.bar])
        self._live = {text: seen[text] for text in lines if text in seen}
        for text in lines:
            if text not in seen:
                self._read_live_line(text, readings.get(text), keep=due)
        if any(reading.bar for reading in readings.values()) or now - self._waiting_since > _WAIT_S:
            self.flush_waiting()
        if due:
            self._metrics_at = now

    def _read_live_line(self, text: str, reading: LineReading | None, *, keep: bool) -> None:
        if reading is not None:
            self._apply(reading, keep=keep)
        self._read_patterns(text, keep=keep)
        self._live[text] = self._position.metric_step

    @property
    def is_waiting(self) -> bool:
        """Whether values wait for the bar to show their step."""
        return bool(self._waiting)

    def flush_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for step, values in waiting:
            self._add(values, step=None if self._position.has_bar else step)

    def progress(self) -> dict[str, Any] | None:
        """Return the progress record, in the form that recipes report; None before anything was recognised."""
        record = self._position.record()
        loss = next((self._latest[name] for name in ("loss", "train_loss", "train/loss") if name in self._latest), None)
        if record and loss is not None and math.isfinite(loss):
            record["loss"] = loss
        return record or None

    def take_metrics(self) -> list[dict[str, Any]]:
        """Return the metric records since the last call."""
        records, self._records = self._records, []
        return records

    def _has_time(self) -> bool:
        now = self._clock()
        self._credit_s = min(_MOST_CREDIT_S, self._credit_s + _SHARE * (now - self._credited))
        self._credited = now
        if self._credit_s > 0:
            return True
        self._note_too_fast()
        return False

    def _note_too_fast(self) -> None:
        if not self._too_fast:
            self._too_fast = True
            self._note("output comes faster than it can be read for metrics: some lines are only logged")

    def _read_line(self, text: str) -> None:
        reading = parse_line(text, self._sources)
        if text in self._live:  # its position is known already, and later lines may have changed it since
            if reading is not None and reading.values:
                self._add(reading.values, step=self._live[text])
            self._read_patterns(text, keep=True)
            return
        if reading is not None:
            self._position.see_alone(reading.bar)
            self._apply(reading, keep=True)
        self._read_patterns(text, keep=True)

    def _apply(self, reading: LineReading, *, keep: bool) -> None:
        self._position.apply(reading)
        if reading.values and not reading.own_step:
            self._unplaced += reading.epoch_fraction is not None
            step = None if reading.epoch_fraction is None else self._unplaced
            self._waiting.append((step, reading.values))
            self._waiting_since = self._clock()
            if not self._position.has_bar and step is None:
                self.flush_waiting()
        elif reading.values and keep:
            self._add(reading.values)

    def _read_patterns(self, text: str, *, keep: bool) -> None:
        for pattern in list(self._patterns):
            try:
                with _time_limit(PATTERN_S):
                    found = pattern.search(text)
            except _TooSlow:
                self._patterns.remove(pattern)
                self._note(
                    f"metrics: {pattern.pattern!r} took longer than {PATTERN_S:g} s on a line and is no longer used"
                )
                continue
            if found is not None:
                self._apply_match(found, keep=keep)

    def _apply_match(self, found: re.Match[str], *, keep: bool) -> None:
        numbers = {name: number for name, text in found.groupdict().items() if (number := _number(text)) is not None}
        place = {name: int(numbers[name]) for name in _POSITION if name in numbers and math.isfinite(numbers[name])}
        values = {name: number for name, number in numbers.items() if name not in _POSITION}
        if place:
            step, steps, epoch, epochs = (place.get(name) for name in _POSITION)
            self._position.apply(LineReading(step=step, steps=steps, epoch=epoch, epochs=epochs))
        if values and keep:
            self._add(values)

    def _add(self, values: Mapping[str, float], *, step: int | None = None) -> None:
        kept = {name: value for name, value in values.items() if self._accepts(name)}
        if not kept:
            return
        self._latest.update(kept)
        step, epoch = step or self._position.metric_step, self._position.epoch
        if step is None:
            step = self._unplaced = self._unplaced + 1
        numbers = {name: value if math.isfinite(value) else repr(value) for name, value in kept.items()}
        if self._records and self._records[-1]["step"] == step:
            self._records[-1].update(numbers)
            return
        where = {} if epoch is None else {"epoch": epoch}
        self._records.append({"step": step, **where, "time": round(time.time(), 3), **numbers})

    def _accepts(self, name: str) -> bool:
        if name in _RESERVED:
            return False
        if name not in self._names and len(self._names) >= MAX_METRICS:
            if len(self._names) == MAX_METRICS:
                self._note(f"more than {MAX_METRICS} different metrics: {name!r} and later ones are not recorded")
                self._names.add(name)
            return False
        self._names.add(name)
        return True


class _Position:
    """The program's position: epoch and step over the whole run."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.epoch: int | None = None  # from 0
        self.epochs: int | None = None
        self._printed: int | None = None  # the epoch as it was printed
        self._from_zero = False
        self._step: int | None = None
        self._steps: int | None = None
        self._in_epoch: tuple[int, int | None] | None = None  # a step within the epoch, and how many it has
        self._base = 0  # steps of bars that were complete before this one
        self._global_steps = False  # printed steps continue over epochs
        self._fractional = False  # the epoch comes from the Trainer, whose bar counts all steps
        self._bar_key: tuple[str, int | None] | None = None
        self._epoch_bar: tuple[str, int | None] | None = None
        self._step_bars: set[tuple[str, int | None]] = set()  # advanced while they were alone
        self._alone: tuple[tuple[str, int | None], int] | None = None
        self._rate: float | None = None
        self._left_s: float | None = None
        self._doing = ""
        self._epoch_complete = False
        self._epoch_of_step: int | None = None
        self._recent: deque[tuple[float, int]] = deque(maxlen=_WINDOW)

    @property
    def has_bar(self) -> bool:
        return self._bar_key is not None

    @property
    def metric_step(self) -> int | None:
        if self._step is not None:
            return self._step
        return None if self.epoch is None else self.epoch + 1

    def see_bars(self, bars: Sequence[Bar]) -> None:
        """Note which bars are shown at once: of two that train, the upper one counts epochs."""
        training = [bar for bar in bars if not bar.preparing]
        if len(training) == 1:
            self.see_alone(training[0])
        elif len(training) > 1:
            self._alone = None
            if training[0].key not in self._step_bars:
                self._epoch_bar = training[0].key

    def see_alone(self, bar: Bar | None) -> None:
        if bar is None or bar.preparing or bar.key == self._epoch_bar:
            return
        if self._alone is not None and self._alone[0] == bar.key and bar.done > self._alone[1]:
            self._step_bars.add(bar.key)
        self._alone = (bar.key, bar.done)

    def apply(self, reading: LineReading) -> None:
        if reading.epoch is not None:
            self._set_epoch(reading.epoch, reading.epochs, complete=bool(reading.values))
        if reading.bar is not None:
            self._apply_bar(reading.bar)
        elif reading.step is not None:
            self._set_step(reading.step, reading.steps, in_epoch=reading.in_epoch)
        if reading.epoch_fraction is not None:
            self._set_fraction(reading.epoch_fraction)

    def _set_epoch(self, printed: int, epochs: int | None, *, complete: bool) -> None:
        self._from_zero = self._from_zero or printed == 0
        if self._printed is not None and printed != self._printed and self._in_epoch is None:
            self._left_s = None
        self._printed = printed
        self.epoch = printed if self._from_zero else max(0, printed - 1)
        self._epoch_complete = complete
        if epochs is not None:
            self.epochs = max(epochs + 1 if self._from_zero else epochs, self.epoch + 1)

    def _set_fraction(self, fraction: float) -> None:
        if not math.isfinite(fraction) or fraction < 0:
            return
        self._fractional = True
        self.epoch = max(0, math.ceil(fraction) - 1)
        self._epoch_complete = fraction == int(fraction)
        if self._steps and self._step and fraction:
            self.epochs = max(self.epoch + 1, round(fraction * self._steps / self._step))

    def _apply_bar(self, bar: Bar) -> None:
        if bar.preparing:
            share = f" {100 * bar.done // bar.total}%" if bar.total else ""
            self._doing = f"{bar.description[:40]}{share}".strip() if bar.done != bar.total else ""
            return
        if bar.counts_epochs or bar.key == self._epoch_bar:
            self._epoch_bar = bar.key
            self.epochs = bar.total
            self.epoch = min(bar.done, (bar.total or bar.done + 1) - 1)
            self._from_zero, self._printed = True, self.epoch
            self._epoch_complete = bar.done == bar.total
            return
        if self._bar_key != bar.key and self._bar_key in self._step_bars and bar.key not in self._step_bars:
            return  # an evaluation without a name, below the bar of the training
        self._doing = ""
        self._bar_key = bar.key
        self._set_step(bar.done, bar.total, in_epoch=True)
        if bar.rate:
            self._rate = bar.rate
        self._left_s = bar.left_s if self.epochs is None else None

    def _set_step(self, step: int, steps: int | None, *, in_epoch: bool = False) -> None:
        before = self._in_epoch
        if before is not None and step < before[0] and steps == before[1]:
            self._base += before[1] or before[0]
            self._global_steps = False
        elif before is not None and not in_epoch and step > before[0] and self._epoch_advanced():
            self._global_steps = True
        self._in_epoch = (step, steps)
        self._epoch_of_step = self.epoch
        counts_all = self._global_steps or self._fractional
        index = self.epoch if self.epoch is not None and steps and not counts_all else None
        per_epoch = index is not None and (self.epochs is not None or in_epoch or self._base > 0)
        self._step = index * steps + step if per_epoch and index is not None and steps else self._base + step
        if steps:
            epochs = self.epochs or (index or 0) + 1
            self._steps = epochs * steps if per_epoch else self._base + steps
        self._recent.append((self._clock(), self._step))

    def _epoch_advanced(self) -> bool:
        return self._epoch_of_step is not None and self.epoch is not None and self.epoch > self._epoch_of_step

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        step, steps = self._step, self._steps
        if step is None and self.epoch is not None:
            step, steps = self.epoch + self._epoch_complete, self.epochs
            if not self._recent or self._recent[-1][1] != step:
                self._recent.append((self._clock(), step))
        if step is not None:
            found |= {"step": step, **({"steps": max(steps, step)} if steps else {})}
        if self.epoch is not None:
            found |= {"epoch": self.epoch, **({"epochs": self.epochs} if self.epochs else {})}
        if self._doing:
            found["doing"] = self._doing
        return found | self._speed(step, steps)

    def _speed(self, step: int | None, steps: int | None) -> dict[str, float]:
        rate = self._rate
        if rate is None and len(self._recent) > 1:
            (then, before), (now, here) = self._recent[0], self._recent[-1]
            rate = (here - before) / (now - then) if now > then and here > before else None
        if not rate or step is None:
            return {}
        left = self._left_s if self._left_s is not None else (steps - step) / rate if steps else None
        return {"rate": round(rate, 3), **({} if left is None else {"eta_s": round(max(0.0, left), 1)})}


class _TooSlow(HeadwayError):
    """A pattern took too long on a line."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise _TooSlow in this block after `seconds`. Python's `re` checks for signals while it matches.

    Works on the main thread alone, which is where the supervisor reads output.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    armed = True

    def interrupt(number: int, frame: FrameType | None) -> None:
        if armed:  # a signal that is handled only after the block has ended must not raise
            raise _TooSlow("too slow")

    earlier = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").rstrip("%,"))
    except ValueError:
        return None
