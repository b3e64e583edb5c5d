"""Decode images in processes that can be killed: a thread cannot be ended, and a decoder may take memory with it.

Small images have processes of their own, so that large ones, which get less of the processors, cannot hold them up.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from headway.artifacts.predictor import PredictionError
from headway.serving.decoder import ANSWER, OK, REQUEST

T = TypeVar("T")
SMALL_PIXELS: Final = 2_000_000  # of an instance that takes the fast lane
SMALL_S: Final = 1.0  # after which it is moved to the slow one
LARGE_S: Final = 20.0
_NICE: Final = 10  # of the slow lane
Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Encoded:
    """An image file of a client. `pixels` is what its header claims."""

    body: bytes
    pixels: int
    at: str  # JSON pointer


@dataclass(slots=True)
class _Job:
    images: Sequence[Encoded]
    finish: Callable[[list[Pixels]], Any]
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    small: bool
    process: subprocess.Popen[bytes] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def end(self) -> None:
        """Kill the process that works on it, if nobody waits for the answer any more."""
        with self.lock:
            if self.process is not None and self.answer.cancelled():
                self.process.kill()

    def settle(self, value: Any) -> None:
        """Deliver the answer or error on the event loop."""

        def deliver() -> None:
            if self.answer.done():
                return
            if isinstance(value, BaseException):
                self.answer.set_exception(value)
            else:
                self.answer.set_result(value)

        with suppress(RuntimeError):  # the event loop is closed
            self.loop.call_soon_threadsafe(deliver)


class _Lane:
    """Jobs that wait, those with the fewest pixels first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, _Job]] = []
        self._number = itertools.count()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, job: _Job) -> None:
        with self._changed:
            cost = sum(image.pixels for image in job.images)
            heapq.heappush(self._heap, (cost, next(self._number), job))
            self._changed.notify()

    def take(self) -> _Job | None:
        """Return the next job that somebody waits for; None once the lane is closed."""
        with self._changed:
            while True:
                while self._heap:
                    job = heapq.heappop(self._heap)[2]
                    if not job.answer.done():
                        return job
                if self._closed:
                    return None
                self._changed.wait()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class DecoderPool:
    """Decodes images and prepares the model's input from them. Call `run` on the event loop.

    Args:
        most: Pixels of the largest permitted image, which bounds the memory of each process.
        workers: Processes for small images; there is one more for large ones.
        warm: Start the processes at once, not when they are first needed.
    """

    def __init__(self, *, most: int, workers: int | None = None, warm: bool = False) -> None:
        self._most, self._warm = most, warm
        self._small, self._large = _Lane(), _Lane()
        count = workers or max(2, min(8, os.cpu_count() or 2))
        self._threads = [
            threading.Thread(target=self._work, args=(lane, lane is self._large), daemon=True, name="decode")
            for lane in (*[self._small] * count, self._large)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads and their processes, after the jobs at hand."""
        self._small.close()
        self._large.close()
        for thread in self._threads:
            thread.join()

    async def run(self, images: Sequence[Encoded], finish: Callable[[list[Pixels]], T]) -> T:
        """Decode the images, call `finish` with their pixels in a thread, and return what it returns.

        Cancelling it ends the work, also in the middle of an image.

        Raises:
            PredictionError: An image is damaged, too large or takes too long.
        """
        loop = asyncio.get_running_loop()
        small = sum(image.pixels for image in images) <= SMALL_PIXELS
        job = _Job(images, finish, loop.create_future(), loop, small)
        (self._small if small else self._large).put(job)
        try:
            result: T = await job.answer
            return result
        except asyncio.CancelledError:
            job.answer.cancel()
            job.end()
            raise

    def _work(self, lane: _Lane, is_large: bool) -> None:
        """Take jobs until the lane is closed, with one process for all of them."""
        if is_large and sys.platform == "linux":
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)  # of this thread
        worker = _Process(is_large)
        if self._warm:
            worker.start()
        try:
            while (job := lane.take()) is not None:
                self._do(job, worker, is_large)
        finally:
            worker.close()

    def _do(self, job: _Job, worker: _Process, is_large: bool) -> None:
        end = time.monotonic() + (LARGE_S if is_large else SMALL_S)
        try:
            most = self._most if is_large else min(self._most, SMALL_PIXELS)
            pixels = [worker.decode(image, job, most, end) for image in job.images]
            job.settle(job.finish(pixels))
        except TimeoutError:
            worker.close()
            if is_large:
                job.settle(PredictionError(413, "decoding this image takes too long", at=job.images[0].at))
            else:
                self._large.put(job)
        except (OSError, EOFError):  # it died: of its memory limit, of this image, or because nobody waits any more
            worker.close()
            job.settle(PredictionError(413, "this image cannot be decoded", at=job.images[0].at))
        except BaseException as error:  # noqa: BLE001  whatever `finish` raises is the request's
            job.settle(error)


class _Process:
    """A decoder process, started when it is first needed and again after its end."""

    def __init__(self, is_large: bool) -> None:
        self._nice = _NICE if is_large else 0
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def decode(self, image: Encoded, job: _Job, most: int, end: float) -> Pixels:
        """Decode one image. Raises TimeoutError at `end`, OSError or EOFError if the process dies."""
        connection = self.start()
        with job.lock:
            job.process = self._process
        job.end()  # it may have been cancelled before there was a process to kill
        try:
            connection.settimeout(max(0.05, end - time.monotonic()))
            connection.sendall(REQUEST.pack(len(image.body), most))
            connection.sendall(image.body)
            status, one, other = ANSWER.unpack(_received(connection, ANSWER.size, end))
            if status != OK:
                raise PredictionError(status, _received(connection, one, end).decode(), at=image.at)
            body = _received(connection, one * other * 3, end)
            return np.frombuffer(body, np.uint8).reshape(other, one, 3)
        finally:
            with job.lock:
                job.process = None

    def start(self) -> socket.socket:
        if self._socket is not None and self._process is not None and self._process.poll() is None:
            return self._socket
        self.close()
        ours, theirs = socket.socketpair()
        with theirs:
            nice = [sys.executable, "-c", _NICELY, str(self._nice)] if self._nice else [sys.executable, "-m", _PROGRAM]
            self._process = subprocess.Popen(
                [*nice, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self._socket = ours
        return ours

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._socket = self._process = None


_PROGRAM: Final = "headway.serving.decoder"
_NICELY: Final = f"import os, sys; os.nice(int(sys.argv.pop(1))); from {_PROGRAM} import main; main()"


def _received(connection: socket.socket, count: int, end: float) -> bytearray:
    body = bytearray(count)
    view, got = memoryview(body), 0
    while got < count:
        connection.settimeout(max(0.001, end - time.monotonic()))
        more = connection.recv_into(view[got:])
        if not more:
            raise EOFError
        got += more
    return body
