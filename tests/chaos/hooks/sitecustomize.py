"""Loaded by every Python process of a run that is tried with faults: its stores misbehave as the environment says.

CHAOS_FAULT is JSON: `role` (supervisor, rank0, …), `number` of the write, counted in that process, `kind`. It strikes
once in the life of a run. CHAOS_WRITES is a file to which every write is noted, CHAOS_CLOCK_BACK_S how far the clock of
the wall jumps back once the process runs.
"""

from __future__ import annotations

import os
import sys

if "CHAOS_WRITES" in os.environ or "CHAOS_CLOCK_BACK_S" in os.environ:
    sys.path.insert(0, os.environ["CHAOS_ROOT"])
    from tests.chaos import injected

    injected.install(os.environ)
