"""Numbers over time: buffered without waiting for the device, written in segments by a thread. About 1 µs a value."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headway.errors import BadInput
from headway.segments import SegmentWriter
from headway.storage.base import Store


class Metrics:
    """One record a step, also when it is logged in pieces. A number on a GPU is read when it is written."""

    def __init__(
        self,
        store: Store,
        attempt: int,
        resume_step: int,
        *,
        resume_attempt: int | None = None,
        also: Callable[[Sequence[dict[str, Any]]], None] = lambda records: None,
    ) -> None:
        """`also` is called with records once they are in the store.

        `resume_attempt` wrote the checkpoint that we go on from: what it logged is our past. Mostly it is the attempt
        before; a manifest that came late to the store may belong to an older one.
        """
        self._also = also
        self._untold: list[dict[str, Any]] = []
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
        """Everything up to and with step `through` is in the store when this returns; by default all complete steps."""
        with self._flushing:  # one at a time: what another call has taken out must be written before this one returns
            records = _numbers(self._take_out(through))
            for record in records:
                self._writer.add(json.dumps(record, allow_nan=False))
            self._untold += records
            self._writer.flush()
            records, self._untold = self._untold, []
            self._also(records)

    def _take_out(self, through: int | None) -> list[dict[str, Any]]:
        with self._lock:
            count = len(self._records) if through is not None else max(0, len(self._records) - 1)
            while through is not None and count and self._records[count - 1]["step"] > through:
                count -= 1
            ready, self._records = self._records[:count], self._records[count:]
        return ready

    def finish(self) -> None:
        self.flush(through=1 << 62)


def plain(name: str, value: Any) -> Any:
    """A number now, or a detached tensor that becomes one later without stopping the device."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise BadInput(f"{name} has {value.numel()} values, a metric is one", fix=f"log {name}.mean()")
        return value.item() if value.device.type == "cpu" else value.detach()
    if isinstance(value, bool | int | float):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise BadInput(f"{name} is a {type(value).__name__}, a metric is a number") from None


def _numbers(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records with all device values read in one go."""
    waiting = [(record, name) for record in records for name, value in record.items() if isinstance(value, Tensor)]
    if waiting:
        values = torch.stack([record[name].reshape(()).float() for record, name in waiting]).tolist()
        for (record, name), value in zip(waiting, values, strict=True):
            record[name] = value
    for record in records:
        record["time"] = round(record["time"], 3)
        for name, value in record.items():
            if isinstance(value, float) and not math.isfinite(value):
                record[name] = repr(value)  # JSON has no nan; readers see "nan" rather than a broken line
    return records
