"""Metrics of each step, averaged over micro-batches and ranks by weight, and written to the run folder in segments.

Averaging over ranks needs no extra collective: the values logged for a step are reduced with the next step's gradients.
Where there is no next step (a checkpoint, the end of an epoch), `reduce_now` reduces them at once.
"""

from __future__ import annotations

import json
import math
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headway.core.errors import BadInput
from headway.rundir.layout import SegmentWriter
from headway.storage.base import Store
from headway.training.accumulation import nonzero
from headway.training.context import Session
from headway.training.distributed.grad_sync import METRICS, ReducedFlags
from headway.training.metrics.progress import Reporter
from headway.training.metrics.trackers.base import Trackers, open_trackers


class MetricsBuffer:
    """Buffers one record per step, even if it is logged in pieces, and writes them in segments.

    Logging takes about 1 µs per value and does not wait for the device: numbers on a GPU are read when the
    records are written.
    """

    def __init__(
        self,
        store: Store,
        attempt: int,
        resume_step: int,
        *,
        resume_attempt: int | None = None,
        on_flushed: Callable[[Sequence[dict[str, Any]]], None] = lambda records: None,
    ) -> None:
        """`on_flushed` is called with records once they are in the store.

        `resume_attempt` is the attempt that wrote the checkpoint we resumed from, whose metrics are our history. It is
        usually the attempt before; a manifest that reached the store late may belong to an older one.
        """
        self._on_flushed = on_flushed
        self._unsent: list[dict[str, Any]] = []
        self._writer = SegmentWriter(store, "metrics", attempt)
        self._lock, self._flushing = threading.Lock(), threading.Lock()
        self._records: list[dict[str, Any]] = []
        past = {} if resume_attempt is None else {"resume_attempt": resume_attempt}
        self._writer.add(json.dumps({"resume_step": resume_step, **past}))

    def log(self, step: int, epoch: int, values: Mapping[str, Any]) -> None:
        with self._lock:
            records = self._records
            if records and records[-1]["step"] == step:
                records[-1].update(values)
            else:
                records.append({"step": step, "epoch": epoch, "time": time.time(), **values})

    def flush(self, through: int | None = None) -> None:
        """Write all records up to and including step `through` to the store; by default, all complete steps."""
        with self._flushing:  # records taken out by another call must be written before this one returns
            records = _resolve_tensors(self._pop_records(through))
            for record in records:
                self._writer.add(json.dumps(record, allow_nan=False))
            self._unsent += records
            self._writer.flush()
            records, self._unsent = self._unsent, []
            self._on_flushed(records)

    def _pop_records(self, through: int | None) -> list[dict[str, Any]]:
        with self._lock:
            count = len(self._records) if through is not None else max(0, len(self._records) - 1)
            while through is not None and count and self._records[count - 1]["step"] > through:
                count -= 1
            ready, self._records = self._records[:count], self._records[count:]
        return ready

    def finish(self) -> None:
        self.flush(through=1 << 62)


def to_number(name: str, value: Any) -> Any:
    """Return a number, or a detached tensor that is read later, without synchronizing the device now."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise BadInput(f"{name} has {value.numel()} values, but a metric is one number", fix=f"log {name}.mean()")
        return value.item() if value.device.type == "cpu" else value.detach()
    if isinstance(value, bool | int | float):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise BadInput(f"{name} is a {type(value).__name__}, but a metric is a number") from None


def _resolve_tensors(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace the tensors in the records by numbers, with a single read from the device."""
    waiting = [(record, name) for record in records for name, value in record.items() if isinstance(value, Tensor)]
    if waiting:
        values = torch.stack([record[name].reshape(()).float() for record, name in waiting]).tolist()
        for (record, name), value in zip(waiting, values, strict=True):
            record[name] = value
    for record in records:
        record["time"] = round(record["time"], 3)
        for name, value in record.items():
            if isinstance(value, float) and not math.isfinite(value):
                record[name] = repr(value)  # JSON has no NaN: readers see "nan" rather than a broken line
    return records


class MetricsLogger:
    """Collects, averages and records metrics. Only rank 0 writes."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._single_rank = session.rank_info.world.size == 1
        self._metrics: MetricsBuffer | None = None
        self._reporter: Reporter | None = None
        self._trackers = Trackers()
        self._body: dict[str, Any] = {}  # logged in the current loop body
        self._sums: dict[str, Any] = {}  # value × weight, over the micro-batches of a step
        self._weight: float | Tensor = 0.0
        self._epoch = 0
        self.latest: dict[str, Any] = {}

    def begin(self, step: int, read_progress: Any, resumed_attempt: int | None = None) -> None:
        """Start the attempt's metrics: records that earlier attempts logged after `step` are void."""
        if self._metrics is None and self._session.is_first:
            session = self._session
            self._trackers = open_trackers(session, step)
            self._metrics = MetricsBuffer(
                session.store,
                session.rank_info.attempt,
                step,
                resume_attempt=resumed_attempt,
                on_flushed=self._trackers.send,
            )
            self._reporter = Reporter(read_progress, self._session.control, self._metrics.flush)

    def collect(self, values: Mapping[str, Any]) -> None:
        """Collect values that were logged in the loop body."""
        for name, value in values.items():
            self._body[name] = to_number(name, value)

    def drop_body(self) -> bool:
        """Drop the values of a skipped batch. Always returns False, the caller's new "skipped" state."""
        self._body = {}
        return False

    def record(self, step: int, epoch: int, values: Mapping[str, Any]) -> None:
        """Record values that were logged outside the loop body, where they are the same on every rank."""
        self._record(step, epoch, {name: to_number(name, value) for name, value in values.items()})

    def _record(self, step: int, epoch: int, values: dict[str, Any]) -> None:
        self.latest.update(values)
        if self._metrics is not None:
            self._metrics.log(step, epoch, values)

    def end_body(self, weight: float | Tensor, step: int, epoch: int, *, micro: bool) -> None:
        """End a loop body. `micro` is True if more micro-batches of the same step follow."""
        if not self._body:
            return
        body, self._body = self._body, {}
        if self._single_rank and not micro and not self._sums:
            self._record(step, epoch, body)
            return
        weight = weight.detach() if isinstance(weight, Tensor) else weight
        for name, value in body.items():
            self._sums[name] = self._sums.get(name, 0.0) + value * weight
        self._weight, self._epoch = self._weight + weight, epoch
        if self._single_rank and not micro:
            self._close_step(step, self._sums, self._weight)

    @property
    def piggyback(self) -> tuple[float, list[Any]]:
        """Return what the next all-reduce carries: a digest of the names, and the weight and sums to add up."""
        names = self._carried_names
        return _digest(names), [self._weight, *(self._sums[name] for name in names)] if names else []

    def record_reduced(self, reduced: ReducedFlags, step: int) -> None:
        """Record the metrics that the all-reduce carried, as those of `step`."""
        names = self._carried_names
        if not names:
            return
        sums, weight = self._sums, self._weight
        if reduced.names == _digest(names) * self._session.group.world.size:
            sums, weight = {**sums, **dict(zip(names, reduced.metrics[1:], strict=False))}, reduced.metrics[0]
        self._close_step(step, sums, weight)  # if ranks logged different metrics, rank 0's own values are used

    def reduce_now(self, exchange: Callable[[float, Sequence[Any]], ReducedFlags], step: int) -> None:
        """Reduce now what the next step would have carried. A collective: every rank calls it at the same place."""
        self.record_reduced(exchange(*self.piggyback), step)

    @property
    def _carried_names(self) -> list[str]:
        return sorted(self._sums)[: METRICS - 1]

    def flush(self, through: int) -> None:
        if self._metrics is not None:
            self._metrics.flush(through)

    def finish(self) -> None:
        if self._metrics is not None:
            self._metrics.finish()

    def close(self) -> None:
        if self._reporter is not None:
            self._reporter.close()

    def close_trackers(self, *, finished: bool, within_s: float) -> None:
        """Close the trackers, after everything else is in the run folder."""
        self._trackers.close(finished=finished, within_s=within_s)

    def _close_step(self, step: int, sums: Mapping[str, Any], weight: Any) -> None:
        divisor = nonzero(weight)
        values = {name: value / divisor for name, value in sums.items()}
        self._sums, self._weight = {}, 0.0
        self._record(step, self._epoch, values)


def _digest(names: list[str]) -> float:
    """Hash the names to a number that is exact in float32, even when summed over many ranks."""
    return float(1 + zlib.crc32(" ".join(names).encode()) % 4093) if names else 0.0
