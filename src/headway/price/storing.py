"""What a run leaves in a bucket, and what keeping it costs a month. Known after a first run or a rehearsal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.price.experience import Experience, length_of, remembered, what_of, work_of
from headway.price.table import STORAGE, load

STORAGE_USD_PER_GB_MONTH = 0.02  # Cloud Storage, Standard, in us-east1, of 2026-08, where the table has no row for it


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    checkpoints: int
    checkpoint_gb: float
    export_gb: float
    usd_per_gb_month: float = STORAGE_USD_PER_GB_MONTH

    @property
    def gb(self) -> float:
        return self.checkpoints * self.checkpoint_gb + self.export_gb

    @property
    def usd_per_month(self) -> float:
        return self.gb * self.usd_per_gb_month


def kept(job: Mapping[str, Any], past: Sequence[Experience] | None = None, region: str = "") -> Kept | None:
    """Checkpoints by the job's own retention, and the bundle; None before anything like it has run."""
    past = remembered() if past is None else past
    same = [one for one in past if one.work == work_of(job)] or [one for one in past if one.what == what_of(job)]
    known = next((one for one in reversed(same) if one.checkpoint_bytes), None)
    if known is None or known.checkpoint_bytes is None:
        return None
    return Kept(
        checkpoints=retained(job),
        checkpoint_gb=known.checkpoint_bytes / 1e9,
        export_gb=(known.export_bytes or known.checkpoint_bytes / 3) / 1e9,  # without the optimizer's state
        usd_per_gb_month=load().per_gb_month(STORAGE, "standard", region, STORAGE_USD_PER_GB_MONTH),
    )


def checkpoint_s(job: Mapping[str, Any], past: Sequence[Experience] | None = None) -> float | None:
    """How long the longest checkpoint of such a run took; None before one has run."""
    past = remembered() if past is None else past
    seen = [one.checkpoint_s for one in past if one.work == work_of(job) and one.checkpoint_s is not None]
    return max(seen, default=None)


def export_s(job: Mapping[str, Any], past: Sequence[Experience] | None = None) -> float | None:
    """How long the longest export of such a run took; None before one has run."""
    past = remembered() if past is None else past
    seen = [one.export_s for one in past if one.work == work_of(job) and one.export_s is not None]
    return max(seen, default=None)


def retained(job: Mapping[str, Any]) -> int:
    """How many checkpoints are there at the end."""
    rules = job.get("checkpoint") or {}
    every = rules.get("keep_every")
    epochs = 0
    if isinstance(every, str) and every.split()[-1].startswith("epoch"):
        epochs = int(length_of(job) // max(1, int(every.split()[0])))
    elif isinstance(every, Mapping) and every.get("epochs"):
        epochs = int(length_of(job) // int(every["epochs"]))
    return int(rules.get("keep_last", 3)) + int(rules.get("keep_best", 1)) + epochs
