"""What a run logs: numbers of each step, averaged over micro-batches and ranks by weight, at no extra collective.

Values logged for a step wait and ride on the next step's gradients. Where no next step comes (a checkpoint, the end
of an epoch) `settle` sums them at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from headway.runtime.loggers import Loggers, open_loggers
from headway.runtime.metrics import Metrics, plain
from headway.runtime.progress import Reporter
from headway.runtime.session import Session
from headway.runtime.tail import METRICS, Agreed


class Journal:
    """Collects, averages and records. Only rank 0 writes."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._alone = session.identity.world.size == 1
        self._metrics: Metrics | None = None
        self._reporter: Reporter | None = None
        self._loggers = Loggers()
        self._body: dict[str, Any] = {}  # logged since the loop's body began
        self._sums: dict[str, Any] = {}  # value × weight, over the micro-batches of a step
        self._weight: float | Tensor = 0.0
        self._epoch = 0
        self.latest: dict[str, Any] = {}

    def begin(self, step: int, look: Any, resumed_attempt: int | None = None) -> None:
        """The attempt's first record: everything after `step` that was logged before is void."""
        if self._metrics is None and self._session.first:
            session = self._session
            self._loggers = open_loggers(session, step)
            self._metrics = Metrics(
                session.store,
                session.identity.attempt,
                step,
                resume_attempt=resumed_attempt,
                also=self._loggers.feed,
            )
            self._reporter = Reporter(look, self._session.outside, self._metrics.flush)

    def note(self, values: Mapping[str, Any]) -> None:
        """Logged inside the loop's body."""
        for name, value in values.items():
            self._body[name] = plain(name, value)

    def forget_body(self) -> bool:
        """The batch was left out, and what was logged of it with it. Always False: nothing is left out any more."""
        self._body = {}
        return False

    def record(self, step: int, epoch: int, values: Mapping[str, Any]) -> None:
        """Logged elsewhere, the same on every rank."""
        self._keep(step, epoch, {name: plain(name, value) for name, value in values.items()})

    def _keep(self, step: int, epoch: int, values: dict[str, Any]) -> None:
        self.latest.update(values)
        if self._metrics is not None:
            self._metrics.log(step, epoch, values)

    def end_body(self, weight: float | Tensor, step: int, epoch: int, *, micro: bool) -> None:
        """A body is over. `micro` when it was not the last of its step, or others' values must be added."""
        if not self._body:
            return
        body, self._body = self._body, {}
        if self._alone and not micro and not self._sums:
            self._keep(step, epoch, body)
            return
        weight = weight.detach() if isinstance(weight, Tensor) else weight
        for name, value in body.items():
            self._sums[name] = self._sums.get(name, 0.0) + value * weight
        self._weight, self._epoch = self._weight + weight, epoch
        if self._alone and not micro:
            self._close_step(step, self._sums, self._weight)

    @property
    def riders(self) -> tuple[float, list[Any]]:
        """For the next reduction: a digest of the names, and the weight and sums to be added over ranks."""
        names = self._riding
        return _digest(names), [self._weight, *(self._sums[name] for name in names)] if names else []

    def arrived(self, agreed: Agreed, step: int) -> None:
        """The riders have been added up: they belong to `step`."""
        names = self._riding
        if not names:
            return
        sums, weight = self._sums, self._weight
        if agreed.names == _digest(names) * self._session.gang.world.size:
            sums, weight = {**sums, **dict(zip(names, agreed.metrics[1:], strict=False))}, agreed.metrics[0]
        self._close_step(step, sums, weight)  # where ranks logged different things, rank 0's own stand

    def settle(self, exchange: Callable[[float, Sequence[Any]], Agreed], step: int) -> None:
        """Add up now what would have ridden on the next step. Every rank calls this at the same place."""
        self.arrived(exchange(*self.riders), step)

    @property
    def _riding(self) -> list[str]:
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

    def see_off(self, *, finished: bool, within_s: float) -> None:
        """Let the trackers end: the last thing, when everything is in the run folder."""
        self._loggers.close(finished=finished, within_s=within_s)

    def _close_step(self, step: int, sums: Mapping[str, Any], weight: Any) -> None:
        values = {name: value / (weight or 1.0) for name, value in sums.items()}
        self._sums, self._weight = {}, 0.0
        self._keep(step, self._epoch, values)


def _digest(names: list[str]) -> float:
    """Exact in single precision, also as the sum of many."""
    return float(1 + zlib.crc32(" ".join(names).encode()) % 4093) if names else 0.0
