"""Write checkpoints in the background: each rank writes its part, and rank 0 commits the checkpoint with a manifest.

The main thread copies the state; one thread per rank hashes and writes the copy. At most two snapshots exist, one being
written and one waiting; a newer one replaces the waiting one unless that has a name. No collectives are used: rank 0
polls the store for the other ranks' part records. A checkpoint without a manifest does not exist for readers.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from headway.core.errors import NotThere, StoreError
from headway.rundir.layout import checkpoint_folder
from headway.rundir.lease import LeaseLost
from headway.storage.base import Store
from headway.storage.transfer import MAX_PARALLEL, map_parallel
from headway.training.checkpoint.index import CheckpointEntry, CheckpointIndex
from headway.training.checkpoint.serialization import encode_record, read_record, with_checksum
from headway.training.checkpoint.staging import Image, Layout, partition_tensors, signature
from headway.training.context import ControlChannel, say

# Retry of store operations with exponential back-off; logs when the store goes down and when it recovers.


Result = TypeVar("Result")
FIRST_S, LONGEST_S = 0.2, 30.0


class GiveUp(Exception):
    """Raised to stop retrying: newer work is waiting, or time is up."""


class RetryPolicy:
    """Retries after every StoreError, with growing pauses, until `give_up` raises GiveUp. NotThere is not retried."""

    def __init__(
        self, control: ControlChannel, give_up: Callable[[str], None], *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._control, self._give_up, self._sleep = control, give_up, sleep

    def __call__(self, operation: Callable[[], Result]) -> Result:
        pause, since = FIRST_S, time.monotonic()
        failed = False
        while True:
            try:
                result = operation()
            except NotThere:
                raise
            except StoreError as error:
                if not failed:
                    failed = True
                    say(f"the store does not answer, training goes on and this is tried again: {error}")
                    self._control.event("store_down", error=str(error))
                self._give_up(str(error))
                self._sleep(pause)
                pause = min(LONGEST_S, pause * 2)
            else:
                if failed:
                    seconds = round(time.monotonic() - since, 1)
                    say(f"the store answers again after {seconds} s")
                    self._control.event("store_back", seconds=seconds)
                return result


_POLL_S = (0.02, 1.0)  # first and longest interval at which rank 0 polls for parts
PART_S = 900.0  # how long rank 0 waits for another rank's part


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
    moment: CheckpointRequest
    image: Image
    ready: Any = None  # a CUDA event recorded after the copies
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
        seat: RankSlot,
        catalogue: CheckpointIndex,
        control: ControlChannel,
        *,
        environment: Mapping[str, Any],
        flush_metrics: Callable[[int], None] = lambda step: None,
        pin: bool = False,
    ) -> None:
        self._store, self._seat, self._catalogue, self._control = store, seat, catalogue, control
        self._environment, self._pin = environment, pin
        self._flush_metrics = flush_metrics
        self._patience = RetryPolicy(control, self._hopeless)
        self._change = threading.Condition()
        self._waiting: Snapshot | None = None
        self._writing: Snapshot | None = None
        self._held: Snapshot | None = None
        self._free: list[Image] = []
        self._closed = False
        self._abandon_at: float | None = None
        self.fenced: LeaseLost | None = None
        self.committed = -1  # the newest step whose manifest is written
        self.last_seconds = 0.0  # how long the newest took to write, including its manifest
        self._thread = threading.Thread(target=self._work, name="headway-saver", daemon=True)
        self._thread.start()

    # On the main thread

    @property
    def busy(self) -> bool:
        return self._writing is not None or self._waiting is not None

    @property
    def crowded(self) -> bool:
        """Whether the waiting snapshot must not be replaced by another."""
        waiting = self._waiting
        return waiting is not None and (waiting.moment.forever or bool(waiting.moment.names))

    def prepare(self, tensors: Mapping[str, Tensor], spread: Sequence[str]) -> None:
        """Allocate the staging buffer, on a thread, before the first checkpoint is due."""
        mine = self._mine(tensors, spread)
        threading.Thread(target=self._preallocate, args=(mine,), daemon=True).start()

    def _preallocate(self, mine: Mapping[str, Tensor]) -> None:
        image = Image(Layout(mine), mine, pin=self._pin)
        with self._change:
            if not self._free and not self.busy:
                self._free.append(image)

    def take(self, moment: CheckpointRequest, tensors: Mapping[str, Tensor], spread: Sequence[str]) -> Snapshot:
        """Copy the state and queue it for writing. Training waits for this call only."""
        snapshot = self._copy(moment, tensors, spread)
        self._queue(snapshot)
        return snapshot

    def hold(self, moment: CheckpointRequest, tensors: Mapping[str, Tensor], spread: Sequence[str]) -> None:
        """Copy the state without queueing it, in case the run is stopped before the next snapshot."""
        if self._waiting is None:  # otherwise there would be three snapshots
            self._held = self._copy(moment, tensors, spread)

    def release(self) -> None:
        """Discard the held snapshot."""
        with self._change:
            if self._held is not None:
                self._free.append(self._held.image)
                self._held = None

    def write_snapshot(self) -> None:
        """Queue the held snapshot for writing, because the run is being stopped."""
        held, self._held = self._held, None
        if held is not None:
            self._queue(held)

    def _copy(self, moment: CheckpointRequest, tensors: Mapping[str, Tensor], spread: Sequence[str]) -> Snapshot:
        began = time.perf_counter()
        mine = self._mine(tensors, spread)
        image = self._room(mine, moment)
        image.fill(mine)
        snapshot = Snapshot(moment, image)
        if self._pin:
            snapshot.ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            snapshot.ready.record()
        snapshot.moment = replace(moment, stall_s=time.perf_counter() - began)
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
            done = self._change.wait_for(lambda: not self.busy or self.fenced is not None, timeout_s)
        return done and self.fenced is None and not (newest is not None and newest.given_up)

    def close(self, timeout_s: float | None = None) -> None:
        self.drain(timeout_s)
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._thread.join(timeout_s)

    def _mine(self, tensors: Mapping[str, Tensor], spread: Sequence[str]) -> dict[str, Tensor]:
        names = partition_tensors(tensors, spread, self._seat.ranks)[self._seat.rank]
        return {name: tensors[name] for name in names}

    def _room(self, mine: Mapping[str, Tensor], moment: CheckpointRequest) -> Image:
        with self._change:
            if self._waiting is not None and not self._replaceable(self._waiting.moment, moment):
                say(f"the store is slow: waiting for the checkpoint of step {self._waiting.moment.step}")
                self._change.wait_for(lambda: self._waiting is None or self.fenced is not None)
            if self._waiting is not None:
                self._free.append(self._waiting.image)
                self._waiting.done.set()
                self._waiting = None
            fitting = [image for image in self._free if image.layout.signature == signature(mine)]
            self._free = []  # buffers of another layout are never used again
            if fitting:
                return fitting[0]
        return Image(Layout(mine), mine, pin=self._pin)

    @staticmethod
    def _replaceable(old: CheckpointRequest, new: CheckpointRequest) -> bool:
        return not old.forever and set(old.names) <= set(new.names)

    # On the background thread

    def _work(self) -> None:
        _be_nice()
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting is not None or self._closed)
                if self._waiting is None:
                    return
                snapshot, self._waiting = self._waiting, None
                self._writing = snapshot
                self._change.notify_all()
            try:
                self._save(snapshot)
            except GiveUp as impatient:
                snapshot.given_up = True
                say(f"the checkpoint of step {snapshot.moment.step} was given up: {impatient}")
            except LeaseLost as lost:
                self.fenced = lost
            except BaseException as error:  # a bug must not end checkpoints silently while training goes on
                self.fenced = LeaseLost(f"checkpoints cannot be written: {type(error).__name__}: {error}")
                self.fenced.__cause__ = error
                raise
            finally:
                self._finish(snapshot)

    def _finish(self, snapshot: Snapshot) -> None:
        with self._change:
            self._writing = None
            self._free.append(snapshot.image)
            snapshot.done.set()
            self._change.notify_all()

    def _save(self, snapshot: Snapshot) -> None:
        began = time.monotonic()
        moment, seat = snapshot.moment, self._seat
        if snapshot.ready is not None:
            snapshot.ready.synchronize()
        folder, part = checkpoint_folder(moment.step), seat.part(seat.rank, moment.turn)
        body = snapshot.image.bytes
        record = {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        patient = self._patience
        patient(lambda: self._store.write(f"{folder}/{part}.safetensors", body))
        if seat.rank:
            patient(lambda: self._store.write(f"{folder}/{part}.json", encode_record(record)))
            return
        files = {f"{part}.safetensors": record, **self._parts(moment)}
        self._commit(moment, files)
        self.last_seconds = time.monotonic() - began
        self._control.event(
            "checkpoint",
            step=moment.step,
            names=list(moment.names),
            bytes=sum(file["bytes"] for file in files.values()),
            seconds=round(self.last_seconds, 3),
            stall_ms=round(moment.stall_s * 1000, 2),
        )

    def _parts(self, moment: CheckpointRequest) -> dict[str, dict[str, Any]]:
        """Poll for the other ranks' part records and return them by file name.

        Raises GiveUp if a rank has skipped this checkpoint for a later one, or is too late.
        """
        pause, longest = _POLL_S
        give_up = time.monotonic() + PART_S
        found: dict[int, dict[str, Any]] = {}
        missing = list(range(1, self._seat.ranks))
        while missing:
            come = self._come(moment, missing[:MAX_PARALLEL])
            found |= come
            missing = [rank for rank in missing if rank not in come]
            if come:
                pause, _ = _POLL_S
                continue
            rank, newer = missing[0], self._waiting
            if newer is not None and self._come(newer.moment, [rank]):
                raise GiveUp(f"rank {rank} was already at step {newer.moment.step}")
            self._hopeless(f"rank {rank} has not written its part")
            if time.monotonic() > give_up:
                raise GiveUp(f"rank {rank} has not written its part in {PART_S:.0f} s")
            time.sleep(pause)
            pause = min(longest, pause * 1.5)
        return {f"{self._seat.part(rank, moment.turn)}.safetensors": found[rank] for rank in sorted(found)}

    def _come(self, moment: CheckpointRequest, ranks: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return the part records of those of `ranks` that have written theirs."""
        keys = [f"{checkpoint_folder(moment.step)}/{self._seat.part(rank, moment.turn)}.json" for rank in ranks]
        records = self._patience(lambda: map_parallel(self._look, keys))
        return {rank: record for rank, record in zip(ranks, records, strict=True) if record is not None}

    def _look(self, key: str) -> dict[str, Any] | None:
        try:
            return read_record(self._store, key)
        except NotThere:
            return None

    def _commit(self, moment: CheckpointRequest, files: Mapping[str, Mapping[str, Any]]) -> None:
        """Write the state, the metrics, then the manifest: once a manifest is visible, everything else is complete."""
        folder, patient = checkpoint_folder(moment.step), self._patience
        state_name = self._seat.part(0, moment.turn).replace("-r0", "-state.json")
        state = encode_record({"state": moment.tree, "environment": dict(self._environment)})
        patient(lambda: self._store.write(f"{folder}/{state_name}", state))
        patient(lambda: self._flush_metrics(moment.step))
        manifest = {
            "schema": 1,
            "step": moment.step,
            "epoch": moment.epoch,
            "attempt": self._seat.attempt,
            "ranks": self._seat.ranks,
            "names": list(moment.names),
            "score": moment.score,
            "forever": moment.forever,
            "state": {"name": state_name, "bytes": len(state), "sha256": hashlib.sha256(state).hexdigest()},
            "files": dict(files),
        }
        patient(lambda: self._catalogue.fence.write({f"{folder}/manifest.json": with_checksum(manifest)}))
        patient(self._catalogue.fence.require)  # if we stalled and lost the lease, nothing is ours to delete
        self.committed = moment.step
        patient(lambda: self._sweep(folder, moment.turn, {"manifest.json", state_name, *files}))
        kept = CheckpointEntry(moment.step, moment.epoch, moment.names, moment.score, moment.forever)
        patient(lambda: self._catalogue.record(kept))
        patient(self._catalogue.prune)

    def _sweep(self, folder: str, turn: int, mine: set[str]) -> None:
        """Delete part records and the files of earlier snapshots of this step, from this or earlier attempts."""
        newest = _age(self._seat.part(0, turn))
        there = [entry.key.removeprefix(f"{folder}/") for entry in self._store.list(f"{folder}/")]
        served = [name for name in there if name not in mine and _age(name) <= newest]  # newer: a rank that is ahead
        map_parallel(self._store.delete, [f"{folder}/{name}" for name in served])

    def _hopeless(self, why: str) -> None:
        """Raise GiveUp if the grace period is over or the writer is closed. Called between retries."""
        if self._abandon_at is not None and time.monotonic() > self._abandon_at:
            raise GiveUp(f"out of time ({why})")
        if self._closed:
            raise GiveUp(why)


def _age(name: str) -> tuple[int, int]:
    """Return the attempt and turn in the name of a checkpoint's file."""
    match = re.match(r"a(\d+)(?:\.(\d+))?-", name)
    return (int(match[1]), int(match[2] or 0)) if match else (0, 0)


def lease_is_ours(store: Store, attempt: int) -> bool:
    """Return whether no later attempt has begun. A run without a lease (a rehearsal, a test) is always ours."""
    from headway.rundir import lease

    record, _ = lease.read(store)
    return record is None or record.attempt <= attempt


def _be_nice() -> None:
    """Lower this thread's priority, to give way to training on a busy machine."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
    except (OSError, AttributeError):  # not Linux, or no permission: keep the normal priority
        pass
