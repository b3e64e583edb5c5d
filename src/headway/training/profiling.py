"""Profile of a range of steps: `profile: 100-110` in the config, or HEADWAY_PROFILE=100-110. Free outside that range.

Each rank writes its trace to the run folder as profile/steps-100-110-r0.json.gz, for chrome://tracing, Perfetto or
TensorBoard. A table of the slowest operations is written beside it and to the log of rank 0.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from headway.core.errors import BadInput, StoreError
from headway.storage.base import Store
from headway.training.context import log_line

VARIABLE = "HEADWAY_PROFILE"
_ROWS = 20


class StepProfiler:
    """Profiles the steps from `first` to `last`; a run that stops between them keeps the trace so far."""

    def __init__(self, first: int, last: int, store: Store, rank: int) -> None:
        self._first, self._last, self._store, self._rank = first, last, store, rank
        self._profile: profile | None = None
        self._began = 0

    def before_step(self, number: int) -> None:
        """Start the profiler if step `number`, the next one, is in the range."""
        if self._profile is None and self._first <= number <= self._last:
            self._began = number
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(activities=activities, record_shapes=True)
            self._profile.start()

    def after_step(self, number: int) -> None:
        """Stop the profiler after the last step of the range. `number` is the step just done."""
        if self._profile is not None and number >= self._last:
            self.close(number)

    def close(self, number: int) -> None:
        """Stop the profiler, if it runs, and write its trace and table."""
        profiler, self._profile = self._profile, None
        if profiler is None:
            return
        profiler.stop()
        name = f"profile/steps-{self._began}-{number}-r{self._rank}"
        table = profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=_ROWS, max_name_column_width=50)
        with tempfile.TemporaryDirectory(prefix="headway-profile-") as folder:
            trace = Path(folder, "trace.json.gz")
            profiler.export_chrome_trace(str(trace))
            try:
                self._store.write(f"{name}.json.gz", trace.read_bytes())
                self._store.write(f"{name}.txt", table.encode())
            except StoreError as error:  # a lost profile must not fail the run
                log_line(f"the profile could not be written: {error}")
        if self._rank == 0:
            log_line(f"{table}\nthe profile of steps {self._began} to {number} is in {name}.json.gz")


def make_profiler(config: Mapping[str, Any], env: Mapping[str, str], store: Store, rank: int) -> StepProfiler | None:
    """Make the profiler that the environment or the config asks for. Returns None if there is none, at no cost."""
    setting = str(env.get(VARIABLE) or config.get("profile") or "")
    if not setting:
        return None
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", setting)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last:
        raise BadInput(f"profile: {setting} is not a range of steps", fix="write profile: 100-110")
    return StepProfiler(first, last, store, rank)
