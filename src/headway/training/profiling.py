"""A profile of some steps: `profile: 100-110` in the config, or HEADWAY_PROFILE=100-110. Costs nothing outside of them.

Every rank's trace is kept in the run folder as profile/steps-100-110-r0.json.gz, which chrome://tracing, Perfetto and
TensorBoard open, and what took longest as a table beside it and in the log of rank 0.
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
from headway.training.control_channel import say

VARIABLE = "HEADWAY_PROFILE"
_ROWS = 20


class Profiling:
    """Begins with one step and ends with another; a run that is stopped between them keeps what there is."""

    def __init__(self, first: int, last: int, store: Store, rank: int) -> None:
        self._first, self._last, self._store, self._rank = first, last, store, rank
        self._profile: profile | None = None
        self._began = 0

    def before_step(self, number: int) -> None:
        """The step with this number is about to be done."""
        if self._profile is None and self._first <= number <= self._last:
            self._began = number
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(activities=activities, record_shapes=True)
            self._profile.start()

    def after_step(self, number: int) -> None:
        """That many steps are done."""
        if self._profile is not None and number >= self._last:
            self.close(number)

    def close(self, number: int) -> None:
        """Keep the trace of what was seen until here, if anything was."""
        seen, self._profile = self._profile, None
        if seen is None:
            return
        seen.stop()
        name = f"profile/steps-{self._began}-{number}-r{self._rank}"
        table = seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=_ROWS, max_name_column_width=50)
        with tempfile.TemporaryDirectory(prefix="headway-profile-") as folder:
            trace = Path(folder, "trace.json.gz")
            seen.export_chrome_trace(str(trace))
            try:
                self._store.write(f"{name}.json.gz", trace.read_bytes())
                self._store.write(f"{name}.txt", table.encode())
            except StoreError as error:  # a profile is not worth a training
                say(f"the profile could not be kept: {error}")
        if self._rank == 0:
            say(f"{table}\nthe profile of steps {self._began} to {number} is kept as {name}.json.gz")


def profiling(config: Mapping[str, Any], env: Mapping[str, str], store: Store, rank: int) -> Profiling | None:
    """As asked for; None, which costs nothing, where it was not."""
    asked = str(env.get(VARIABLE) or config.get("profile") or "")
    if not asked:
        return None
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", asked)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last:
        raise BadInput(f"profile: {asked} does not say which steps", fix="profile: 100-110")
    return Profiling(first, last, store, rank)
