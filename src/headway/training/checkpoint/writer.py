"""Write checkpoints in the background: each rank writes its part, and rank 0 commits the checkpoint with a manifest.

The main thread copies the state; one thread per rank hashes and writes the copy. At most two snapshots exist, one being
written and one waiting; a newer one replaces the waiting one unless that has a name. No collectives are used: rank 0
polls the store for the other ranks' part records. A checkpoint without a manifest does not exist for readers.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from headway.core.errors import HeadwayError, NotThere, StoreError
from headway.core.retry import NO_LIMIT, Backoff, RetryPolicy, poll, retry
from headway.rundir.layout import checkpoint_folder
from headway.rundir.lease import LeaseLost
from headway.storage.base import Store
from headway.storage.transfer import MAX_PARALLEL, map_parallel
from headway.training.checkpoint.frozen import FrozenFiles, FrozenSnapshot
from headway.training.checkpoint.index import CheckpointEntry, CheckpointIndex
from headway.training.checkpoint.serialization import encode_record, read_record, with_checksum
from headway.training.checkpoint.staging import Layout, StagingBuffer, partition_tensors, signature
from headway.training.context import ControlChannel, log_line
from headway.training.devices import can_pin, record_event

# Retry of store operations with exponential back-off; logs when the store goes down and when it recovers.


Result = TypeVar("Result")
FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 30.0


class GiveUp(Exception):
    """Raised to stop retrying: newer work is waiting, or time is up."""


class StoreRetry:
    """Retries after every StoreError, with growing pauses, until `give_up` raises GiveUp. NotThere is not retried."""

    def __init__(
        self, control: ControlChannel, give_up: Callable[[str], None], *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._control, self._give_up, self._sleep = control, give_up, sleep

    def __call__(self, operation: Callable[[], Result]) -> Result:
        since, failed = time.monotonic(), False

        def report(error: Exception) -> None:
            nonlocal failed
            if not failed:
                failed = True
                log_line(f"the store does not respond; training continues while Headway retries: {error}")
                self._control.event("store_down", error=str(error))
            self._give_up(str(error))

        policy = RetryPolicy(tries=NO_LIMIT, total_s=math.inf, first_pause_s=FIRST_PAUSE_S, longest_pause_s=MAX_PAUSE_S)
        result = retry(operation, policy, on=StoreError, unless=(NotThere,), on_failure=report, sleep=self._sleep)
        if failed:
            seconds = round(time.monotonic() - since, 1)
            log_line(f"the store responds again after {seconds} s")
            self._control.event("store_back", seconds=seconds)
        return result


_POLL_S = (0.02, 1.0)  # first and longest interval at which rank 0 polls for parts
PART_TIMEOUT_S = 900.0  # how long rank 0 waits for another rank's part


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRequest:
    """Metadata of one checkpoint: its step, names, score and state without tensors."""

    step: int
    epoch: int
    tree: Any  # everything but the tensors
    names: tuple[str, ...] = ()  # pointers to set: best, epoch_5
    score: float | None = None
    forever: bool = False  # retention never removes it
    turn: int = 0  # how many snapshots of the same step this attempt took before
    stall_s: float = 0.0


@dataclass(slots=True)
class Snapshot:
    request: CheckpointRequest
    image: StagingBuffer
    frozen: FrozenSnapshot
    ready: Any = None  # an event of the device, recorded after the copies
    done: threading.Event = field(default_factory=threading.Event)
    given_up: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSlot:
    """This rank, the number of ranks, and the attempt, as they appear in file names."""

    rank: int
    ranks: int
    attempt: int

    def part(self, rank: int, turn: int = 0) -> str:
        """Return the stem of a part's file name.

        A second snapshot of a step in one attempt gets new files, so that those of the first stay intact.
        """
        return f"a{self.attempt:04d}-r{rank}" if not turn else f"a{self.attempt:04d}.{turn}-r{rank}"


class AsyncCheckpointWriter:
    """Takes snapshots on the main thread and writes them as checkpoints on a background thread."""

    def __init__(
        self,
        store: Store,
        slot: RankSlot,
        index: CheckpointIndex,
        control: ControlChannel,
        *,
        environment: Mapping[str, Any],
        flush_metrics: Callable[[int], None] = lambda step: None,
        device: torch.device | None = None,
    ) -> None:
        self._store, self._slot, self._index, self._control = store, slot, index, control
        self._environment = environment
        self._device = None if device is None or device.type == "cpu" else device
        self._pin = self._device is not None and can_pin(self._device)
        self._flush_metrics = flush_metrics
        self.frozen = FrozenFiles(store)
        self._retry = StoreRetry(control, self._check_give_up)
        self._change = threading.Condition()
        self._waiting: Snapshot | None = None
        self._writing: Snapshot | None = None
        self._staged: Snapshot | None = None
        self._free: list[StagingBuffer] = []
        self._closed = False
        self._abandon_at: float | None = None
        self.failure: HeadwayError | None = None  # LeaseLost, or a bug of ours: no more checkpoints are written
        self.committed = -1  # the newest step whose manifest is written
        self.last_seconds = 0.0  # how long the newest took to write, including its manifest
        self._thread = threading.Thread(target=self._run, name="headway-saver", daemon=True)
        self._thread.start()

    # On the main thread

    @property
    def busy(self) -> bool:
        return self._writing is not None or self._waiting is not None

    @property
    def must_keep_waiting(self) -> bool:
        """Whether the waiting snapshot must not be replaced by another."""
        waiting = self._waiting
        return waiting is not None and (waiting.request.forever or bool(waiting.request.names))

    def prepare(self, tensors: Mapping[str, Tensor], replicated: Sequence[str], frozen: Sequence[str] = ()) -> None:
        """Allocate the staging buffer, on a thread, before the first checkpoint is due."""
        mine = self._own_tensors(tensors, replicated, frozen)
        threading.Thread(target=self._preallocate, args=(mine,), daemon=True).start()

    def _preallocate(self, mine: Mapping[str, Tensor]) -> None:
        image = StagingBuffer(Layout(mine), mine, pin=self._pin)
        with self._change:
            if not self._free and not self.busy:
                self._free.append(image)

    def save(
        self,
        request: CheckpointRequest,
        tensors: Mapping[str, Tensor],
        replicated: Sequence[str],
        frozen: Sequence[str] = (),
    ) -> Snapshot:
        """Copy the state and queue it for writing. Training waits for this call only.

        `replicated` names tensors that are alike on all ranks, `frozen` those that do not learn.
        """
        snapshot = self._copy(request, tensors, replicated, frozen)
        self._queue(snapshot)
        return snapshot

    def stage(
        self,
        request: CheckpointRequest,
        tensors: Mapping[str, Tensor],
        replicated: Sequence[str],
        frozen: Sequence[str] = (),
    ) -> None:
        """Copy the state without queueing it, in case the run is stopped before the next snapshot."""
        if self._waiting is None:  # otherwise there would be three snapshots
            self._staged = self._copy(request, tensors, replicated, frozen)

    def discard_staged(self) -> None:
        """Discard the held snapshot."""
        with self._change:
            if self._staged is not None:
                self._free.append(self._staged.image)
                self._staged = None

    def write_staged(self) -> None:
        """Queue the held snapshot for writing, because the run is being stopped."""
        staged, self._staged = self._staged, None
        if staged is not None:
            self._queue(staged)

    def _copy(
        self,
        request: CheckpointRequest,
        tensors: Mapping[str, Tensor],
        replicated: Sequence[str],
        frozen: Sequence[str] = (),
    ) -> Snapshot:
        began = time.perf_counter()
        still = self.frozen.snapshot(frozen if self._slot.rank == 0 else (), tensors)
        mine = self._own_tensors(tensors, replicated, frozen) | {name: tensors[name] for name in still.moved}
        image = self._take_buffer(mine, request)
        image.fill(mine)
        snapshot = Snapshot(request, image, still)
        if self._device is not None:
            snapshot.ready = record_event(self._device)
        snapshot.request = replace(request, stall_s=time.perf_counter() - began)
        return snapshot

    def _queue(self, snapshot: Snapshot) -> None:
        with self._change:
            self._waiting = snapshot
            self._change.notify_all()

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until all snapshots are written; return False if they are not in time, and then give them up."""
        with self._change:
            if timeout_s is not None:
                self._abandon_at = time.monotonic() + timeout_s
            newest = self._waiting or self._writing
            done = self._change.wait_for(lambda: not self.busy or self.failure is not None, timeout_s)
        return done and self.failure is None and not (newest is not None and newest.given_up)

    def close(self, timeout_s: float | None = None) -> None:
        self.drain(timeout_s)
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._thread.join(timeout_s)

    def _own_tensors(
        self, tensors: Mapping[str, Tensor], replicated: Sequence[str], frozen: Sequence[str]
    ) -> dict[str, Tensor]:
        apart = set(frozen)
        learning = {name: tensor for name, tensor in tensors.items() if name not in apart} if apart else tensors
        names = partition_tensors(learning, replicated, self._slot.ranks)[self._slot.rank]
        return {name: tensors[name] for name in names}

    def _take_buffer(self, mine: Mapping[str, Tensor], request: CheckpointRequest) -> StagingBuffer:
        with self._change:
            if self._waiting is not None and not self._replaceable(self._waiting.request, request):
                log_line(f"the store is slow: waiting for the checkpoint of step {self._waiting.request.step}")
                self._change.wait_for(lambda: self._waiting is None or self.failure is not None)
            if self._waiting is not None:
                self._free.append(self._waiting.image)
                self._waiting.done.set()
                self._waiting = None
            fitting = [image for image in self._free if image.layout.signature == signature(mine)]
            self._free = []  # buffers of another layout are never used again
            if fitting:
                return fitting[0]
        return StagingBuffer(Layout(mine), mine, pin=self._pin)

    @staticmethod
    def _replaceable(old: CheckpointRequest, new: CheckpointRequest) -> bool:
        return not old.forever and set(old.names) <= set(new.names)

    # On the background thread

    def _run(self) -> None:
        _lower_priority()
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting is not None or self._closed)
                if self._waiting is None:
                    return
                snapshot, self._waiting = self._waiting, None
                self._writing = snapshot
                self._change.notify_all()
            try:
                self._write_checkpoint(snapshot)
            except GiveUp as reason:
                snapshot.given_up = True
                log_line(f"the checkpoint of step {snapshot.request.step} was not written: {reason}")
            except LeaseLost as lost:
                self.failure = lost
            except BaseException as error:  # a bug must not end checkpoints silently while training continues
                self.failure = HeadwayError(f"checkpoints cannot be written: {type(error).__name__}: {error}")
                self.failure.__cause__ = error
                raise
            finally:
                self._finish(snapshot)

    def _finish(self, snapshot: Snapshot) -> None:
        with self._change:
            self._writing = None
            self._free.append(snapshot.image)
            snapshot.done.set()
            self._change.notify_all()

    def _write_checkpoint(self, snapshot: Snapshot) -> None:
        began = time.monotonic()
        request, slot = snapshot.request, self._slot
        if snapshot.ready is not None:
            snapshot.ready.synchronize()
        folder, part = checkpoint_folder(request.step), slot.part(slot.rank, request.turn)
        body = snapshot.image.bytes
        record = {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        retry = self._retry
        retry(lambda: self._store.write(f"{folder}/{part}.safetensors", body))
        if slot.rank:
            retry(lambda: self._store.write(f"{folder}/{part}.json", encode_record(record)))
            return
        files = {f"{part}.safetensors": record, **self._wait_for_parts(request)}
        written = 0 if snapshot.frozen.image is None else len(snapshot.frozen.image.bytes)
        frozen = retry(lambda: self.frozen.write(snapshot.frozen))
        self._commit(request, files, frozen)
        self.last_seconds = time.monotonic() - began
        self._control.event(
            "checkpoint",
            step=request.step,
            names=list(request.names),
            bytes=written + sum(file["bytes"] for file in files.values()),
            seconds=round(self.last_seconds, 3),
            stall_ms=round(request.stall_s * 1000, 2),
        )

    def _wait_for_parts(self, request: CheckpointRequest) -> dict[str, dict[str, Any]]:
        """Poll for the other ranks' part records and return them by file name.

        Raises GiveUp if a rank has skipped this checkpoint for a later one, or is too late.
        """
        found: dict[int, dict[str, Any]] = {}
        missing = list(range(1, self._slot.ranks))
        backoff = Backoff(*_POLL_S, factor=1.5)
        for _ in poll(backoff, within_s=PART_TIMEOUT_S):
            while arrived := self._arrived_parts(request, missing[:MAX_PARALLEL]):
                found |= arrived
                missing = [rank for rank in missing if rank not in arrived]
                backoff.reset()
            if not missing:
                break
            rank, newer = missing[0], self._waiting
            if newer is not None and self._arrived_parts(newer.request, [rank]):
                raise GiveUp(f"rank {rank} was already at step {newer.request.step}")
            self._check_give_up(f"rank {rank} has not written its part")
        else:
            raise GiveUp(f"rank {missing[0]} has not written its part in {PART_TIMEOUT_S:.0f} s")
        return {f"{self._slot.part(rank, request.turn)}.safetensors": found[rank] for rank in sorted(found)}

    def _arrived_parts(self, request: CheckpointRequest, ranks: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return the part records of those of `ranks` that have written theirs."""
        keys = [f"{checkpoint_folder(request.step)}/{self._slot.part(rank, request.turn)}.json" for rank in ranks]
        records = self._retry(lambda: map_parallel(self._read_part_record, keys))
        return {rank: record for rank, record in zip(ranks, records, strict=True) if record is not None}

    def _read_part_record(self, key: str) -> dict[str, Any] | None:
        try:
            return read_record(self._store, key)
        except NotThere:
            return None

    def _commit(
        self,
        request: CheckpointRequest,
        files: Mapping[str, Mapping[str, Any]],
        frozen: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Write the state, the metrics, then the manifest: once a manifest is visible, everything else is complete."""
        folder, retry = checkpoint_folder(request.step), self._retry
        state_name = self._slot.part(0, request.turn).replace("-r0", "-state.json")
        state = encode_record({"state": request.tree, "environment": dict(self._environment)})
        retry(lambda: self._store.write(f"{folder}/{state_name}", state))
        retry(lambda: self._flush_metrics(request.step))
        manifest = {
            "schema": 1,
            "step": request.step,
            "epoch": request.epoch,
            "attempt": self._slot.attempt,
            "ranks": self._slot.ranks,
            "names": list(request.names),
            "score": request.score,
            "forever": request.forever,
            "state": {"name": state_name, "bytes": len(state), "sha256": hashlib.sha256(state).hexdigest()},
            "files": dict(files),
        }
        if frozen:
            manifest["frozen"] = dict(frozen)
        retry(lambda: self._index.fenced_writer.write({f"{folder}/manifest.json": with_checksum(manifest)}))
        retry(self._index.fenced_writer.require_lease)  # if we stalled and lost the lease, nothing is ours to delete
        self.committed = request.step
        retry(lambda: self._delete_superseded(folder, request.turn, {"manifest.json", state_name, *files}))
        entry = CheckpointEntry(request.step, request.epoch, request.names, request.score, request.forever)
        retry(lambda: self._index.record(entry))
        retry(self._index.prune)
        if self.frozen.used:
            retry(lambda: self.frozen.prune(frozen))

    def _delete_superseded(self, folder: str, turn: int, mine: set[str]) -> None:
        """Delete part records and the files of earlier snapshots of this step, from this or earlier attempts."""
        newest = _attempt_and_turn(self._slot.part(0, turn))
        names = [entry.key.removeprefix(f"{folder}/") for entry in self._store.list(f"{folder}/")]
        superseded = [
            name for name in names if name not in mine and _attempt_and_turn(name) <= newest
        ]  # newer: a rank that is ahead
        map_parallel(self._store.delete, [f"{folder}/{name}" for name in superseded])

    def _check_give_up(self, why: str) -> None:
        """Raise GiveUp if the grace period is over or the writer is closed. Called between retries."""
        if self._abandon_at is not None and time.monotonic() > self._abandon_at:
            raise GiveUp(f"out of time ({why})")
        if self._closed:
            raise GiveUp(why)


def _attempt_and_turn(name: str) -> tuple[int, int]:
    """Return the attempt and turn in the name of a checkpoint's file."""
    match = re.match(r"a(\d+)(?:\.(\d+))?-", name)
    return (int(match[1]), int(match[2] or 0)) if match else (0, 0)


def lease_is_ours(store: Store, attempt: int) -> bool:
    """Return whether no later attempt has begun. A run without a lease (a rehearsal, a test) is always ours."""
    from headway.rundir import lease

    record, _ = lease.read(store)
    return record is None or record.attempt <= attempt


def _lower_priority() -> None:
    """Lower this thread's priority, to give way to training on a busy machine."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
    except (OSError, AttributeError):  # not Linux, or no permission: keep the normal priority
        pass
