"""Observe the output of a script: report its progress and metrics, and decide whether it has finished (`ends_when`).

Progress and metrics come from its output and its log files, on node 0 for rank 0, until the script reports by itself
through `headway.start()`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headway.core.metric_sources import MetricSources, chosen_sources
from headway.core.plan import BEGINNING, EXACT, Plan
from headway.core.program import is_project
from headway.supervisor.log_pipeline import Spool
from headway.supervisor.metric_files import MetricFiles
from headway.supervisor.output_reader import OutputReader

_FIRST_POLL_S, _LONGEST_POLL_S = 2.0, 20.0

ProgressHandler = Callable[[dict[str, Any]], None]
MetricHandler = Callable[[Mapping[str, Any]], None]


class OutputObserver:
    """Observer of one attempt. All methods run on the main thread; log files are read on another one."""

    def __init__(
        self,
        sources: MetricSources,
        log: Spool,
        folders: tuple[Path, ...],
        *,
        fresh: bool,
        excluded: tuple[Path, ...] = (),
        on_progress: ProgressHandler,
        on_metrics: MetricHandler,
        note: Callable[[str], None],
    ) -> None:
        """With `fresh`, metrics of earlier attempts are void: the script starts from the beginning."""
        self._log, self._on_progress, self._on_metrics = log, on_progress, on_metrics
        self._reader = OutputReader(sources.output, sources.patterns, note=note)
        self._files = MetricFiles(folders, sources.files, excluded=excluded) if sources.files else None
        self._fresh, self._stopped = fresh, False
        self._reported: dict[str, Any] | None = None
        self._ended, self._writing = threading.Event(), threading.Lock()
        if self._files is not None:
            threading.Thread(target=self._poll_files, name="metric-files", daemon=True).start()

    def on_output(self, lines: bytes) -> None:
        """Read what rank 0 has printed: complete lines, then the bars on its screen if values wait for one."""
        if self._stopped:
            return
        if lines:
            self._reader.read(lines)
        if self._reader.is_waiting:
            self._reader.read_live(self._log.live_lines())

    def tick(self) -> None:
        """Read the bars on the screen and report. Call about once a second."""
        if self._stopped:
            return
        self._reader.read_live(self._log.live_lines())
        self._report()

    def finish(self) -> None:
        """Report the last numbers, after the ranks have ended."""
        if not self._stopped:
            self._reader.flush_waiting()
            self._report()
            self._read_files()
        self.stop()

    def stop(self) -> None:
        """Stop reading: the script reports its own progress and metrics."""
        self._stopped = True
        self._ended.set()

    def _poll_files(self) -> None:
        pause = _FIRST_POLL_S
        while not self._ended.wait(pause):
            self._read_files()
            pause = min(_LONGEST_POLL_S, pause * 1.1)

    def _read_files(self) -> None:
        for record in self._files.read() if self._files is not None and not self._stopped else ():
            self._write(record)

    def _report(self) -> None:
        for record in self._reader.take_metrics():
            self._write(record)
        progress = self._reader.progress()
        if progress and progress != self._reported:
            self._reported = progress
            self._on_progress(dict(progress))

    def _write(self, record: Mapping[str, Any]) -> None:
        with self._writing:
            if self._fresh:
                self._fresh = False
                self._on_metrics({"resume_step": -1})
            self._on_metrics(record)


def sources_of(plan: Plan) -> MetricSources | None:
    """Return the sources to read for a plan, or None if the program reports by itself or reading is switched off."""
    entries = plan.job.get("metrics")
    if not is_project(plan.job) or (entries is None and plan.resume == EXACT):
        return None
    return chosen_sources(entries)


def starts_fresh(plan: Plan, last_attempt: int) -> bool:
    """Return whether metrics of earlier attempts are void when the script starts again."""
    return bool(last_attempt) and plan.resume == BEGINNING


# The end of a program that does not exit by itself


_AFTER_OUTPUT_S = 5.0  # without `idle`: how long after the text the program may still write its files
_LONGEST_LINE = 4096


class EndCondition:
    """Watches rank 0's output. Never met for a job without `ends_when`."""

    def __init__(self, ends_when: Mapping[str, Any] | None, now: Callable[[], float] = time.monotonic) -> None:
        options = ends_when or {}
        text, idle = options.get("output"), options.get("idle")
        self._pattern = re.compile(str(text).encode()) if text else None
        self._idle_s = float(idle) if idle is not None else None
        self._now, self._last_output, self._seen = now, now(), False

    @property
    def active(self) -> bool:
        return self._pattern is not None or self._idle_s is not None

    def start(self) -> None:
        """Forget what an earlier attempt printed."""
        self._last_output, self._seen = self._now(), False

    def on_output(self, rank: int, lines: bytes) -> None:
        if rank == 0 and self.active:
            self._last_output = self._now()
            pattern = self._pattern
            self._seen = self._seen or (
                pattern is not None and any(pattern.search(line[:_LONGEST_LINE]) for line in lines.splitlines())
            )

    def reason(self) -> str:
        """Return why the program counts as finished; "" while it does not."""
        if not self.active:
            return ""
        quiet_s = self._now() - self._last_output
        if self._pattern is None:
            return f"it printed nothing for {self._idle_s:g} s (ends_when)" if quiet_s >= (self._idle_s or 0) else ""
        if not self._seen or quiet_s < (_AFTER_OUTPUT_S if self._idle_s is None else self._idle_s):
            return ""
        return f"it printed {self._pattern.pattern.decode()!r} (ends_when)"
