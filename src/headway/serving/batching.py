"""Dynamic batching of requests for one model, and the choice of torch's thread count.

While the model works on a batch, new requests queue up; then all that wait (up to `batch`) form the next one. So the
batch size follows the load, and no request is delayed to fill a batch.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from headway.artifacts.predictor import Field, Instance, PredictionError, PredictionService
from headway.core.errors import HeadwayError
from headway.model import Audio
from headway.model.values import example
from headway.serving.admission import Overload

log = logging.getLogger("headway.serve")

_END: Final = object()  # of an iterator
Work = Callable[[Sequence[Any], bool], list[Any]]  # (prepared inputs, explain) -> answers


@dataclass(slots=True)
class _PendingRequest:
    prepared: Any
    explain: bool
    answer: asyncio.Future[Any]


@dataclass(slots=True)
class ThroughputEstimate:
    """Moving average of seconds per input, for the Retry-After header of refused requests."""

    seconds_each: float = 0.05

    def note(self, seconds: float, count: int) -> None:
        self.seconds_each += 0.1 * (seconds / count - self.seconds_each)


class Batcher:
    """Queues inputs and runs the model in one thread of its own. Call `predict` on the event loop."""

    def __init__(self, work: Work, *, batch: int, queue: int, on_batch: Callable[[int, float], None]) -> None:
        self._work, self._batch, self._queue, self._on_batch = work, batch, queue, on_batch
        self._waiting: deque[_PendingRequest] = deque()
        self._reserved = 0  # reserved for inputs that are being decoded
        self._batch_began: float | None = None
        self.overload = Overload()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._pace = ThroughputEstimate()
        self._loop_task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        return len(self._waiting) + self._reserved >= self._queue

    @property
    def batch_seconds(self) -> float:
        """Seconds for which the model has worked on the batch at hand."""
        return 0.0 if self._batch_began is None else time.monotonic() - self._batch_began

    def start(self) -> None:
        self._loop_task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop the thread; waiting requests fail with 503."""
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)
        while self._waiting:
            asked = self._waiting.popleft()
            if not asked.answer.done():
                asked.answer.set_exception(PredictionError(503, "the server is shutting down"))
        await asyncio.to_thread(self._thread.shutdown)

    @contextmanager
    def reserve(self, more: int) -> Iterator[None]:
        """Reserve places in the queue while inputs are decoded.

        Raises PredictionError 429 if it is full, before anything is decoded.

        Inputs being decoded count as well as waiting ones, so that a burst of requests cannot exceed the limit.
        """
        queued = len(self._waiting) + self._reserved
        if more > self._queue:
            raise PredictionError(413, f"{more} inputs: the queue holds at most {self._queue}", at="/instances")
        self.overload.note(refused=queued + more > self._queue)
        if queued + more > self._queue:
            seconds = max(1, round(queued * self._pace.seconds_each))
            message = f"the queue is full: {queued} of at most {self._queue} inputs are waiting"
            raise PredictionError(429, message, headers={"Retry-After": str(seconds)})
        self._reserved += more
        try:
            yield
        finally:
            self._reserved -= more

    async def predict(self, prepared: Sequence[Any], *, explain: bool) -> list[Any]:
        """Return the answers to these inputs, in order. Cancelled requests (timeout, disconnect) cost no model time."""
        loop = asyncio.get_running_loop()
        asked = [_PendingRequest(each, explain, loop.create_future()) for each in prepared]
        self._waiting.extend(asked)
        self._arrived.set()
        try:
            return list(await asyncio.gather(*(each.answer for each in asked)))
        except BaseException:  # also after a timeout or a disconnect: the client no longer waits for these
            for each in asked:
                each.answer.cancel()
            self._waiting = deque(each for each in self._waiting if not each.answer.done())  # room for others
            raise

    async def iterate(self, make: Callable[[], Iterator[Any]]) -> AsyncIterator[Any]:
        """Yield what an iterator gives. Each step runs in the model's thread, between batches."""
        loop = asyncio.get_running_loop()
        steps = await loop.run_in_executor(self._thread, make)
        while (piece := await loop.run_in_executor(self._thread, next, steps, _END)) is not _END:
            yield piece

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            batch = self._next()
            if not batch:
                self._arrived.clear()
                continue
            began = time.perf_counter()
            self._batch_began = time.monotonic()
            answers = await loop.run_in_executor(self._thread, self._answers, batch)
            self._batch_began = None
            seconds = time.perf_counter() - began
            self._pace.note(seconds, len(batch))
            self._on_batch(len(batch), seconds)
            for asked, answer in zip(batch, answers, strict=True):
                _deliver(asked.answer, answer)

    def _next(self) -> list[_PendingRequest]:
        """Return the next batch, oldest first, without cancelled inputs; all of a batch have the same `explain`."""
        batch: list[_PendingRequest] = []
        while self._waiting and len(batch) < self._batch:
            first = self._waiting[0]
            if first.answer.done():
                self._waiting.popleft()
            elif batch and first.explain != batch[0].explain:
                break
            else:
                batch.append(self._waiting.popleft())
        return batch

    def _answers(self, batch: list[_PendingRequest]) -> list[Any]:
        """Run the model on a batch, in its thread.

        If it fails, run each input alone, so that a bad input fails only itself.
        """
        try:
            return self._work([each.prepared for each in batch], batch[0].explain)
        except Exception as error:  # any error of the model becomes that input's answer, and is logged
            if len(batch) == 1:
                log.exception("the model failed")
                return [error]
        return [answer for each in batch for answer in self._answers([each])]


def _deliver(answer: asyncio.Future[Any], value: Any) -> None:
    if answer.done():
        return  # the client is gone
    if isinstance(value, PredictionError):
        answer.set_exception(value)
    elif isinstance(value, Exception):
        answer.set_exception(PredictionError(500, "the model failed on this input; see the server's log"))
    else:
        answer.set_result(value)


# Choice of torch's thread count: measured at each start, because it depends on the model and the machine. Threads of a
# small model wait for each other longer than they compute, and another process on one of the cores makes that many
# times worse.


_PROBE_BATCH: Final = 8  # inputs in the measured batch; a single input is measured too
_ROUNDS: Final = 3
_LONG_S: Final = 2.0  # no further round after this


def wait_briefly() -> None:
    """Make OpenMP threads spin only briefly when they wait for each other.

    Call it before torch is loaded (see the supervisor).
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def choose_thread_count(service: PredictionService) -> str:
    """Measure each thread count on synthetic inputs, set the fastest and return a description.

    Respects OMP_NUM_THREADS.
    """
    import torch

    most = torch.get_num_threads()
    if os.environ.get("OMP_NUM_THREADS"):
        return f"{most}, from OMP_NUM_THREADS"
    if most == 1:
        return "1"
    try:
        prepared = [service.prepare(sample_instance(service.fields)) for _ in range(_PROBE_BATCH)]
        _seconds(service, prepared)
    except HeadwayError as error:  # a project's model that needs inputs of another kind than the sample
        return f"{most}, not measured: {error.problem.what}"
    taken = {count: float("inf") for count in _counts(most)}
    began = time.monotonic()
    for _ in range(_ROUNDS):
        for count in taken:  # interleaved, so that a disturbance affects all alike
            torch.set_num_threads(count)
            taken[count] = min(taken[count], _seconds(service, prepared))
        if time.monotonic() - began > _LONG_S:
            break
    best = min(taken, key=lambda count: taken[count])
    torch.set_num_threads(best)
    return f"{best} of {most}: " + ", ".join(f"{1e3 * taken[count]:.0f} ms with {count}" for count in taken)


def sample_instance(fields: Sequence[Field]) -> Instance:
    import numpy as np

    grey = np.linspace(0, 255, 224, dtype=np.uint8)[:, None, None].repeat(224, axis=1).repeat(3, axis=2)

    def sample(field: Field) -> Any:
        if isinstance(field.declared, Audio):
            return np.zeros(field.declared.rate, np.float32)
        if field.kind == "picture":
            return grey
        return "a man in a blue shirt" if field.declared is None else example(field.declared)

    return {field.name: sample(field) for field in fields}


def _counts(most: int) -> list[int]:
    """Return 1, 2, 4, … up to `most`, and `most`."""
    return sorted({*(1 << power for power in range(most.bit_length()) if 1 << power <= most), most})


def _seconds(service: PredictionService, prepared: Sequence[Any]) -> float:
    began = time.perf_counter()
    service.answer(prepared[:1], explain=False)
    service.answer(prepared, explain=False)
    return time.perf_counter() - began
