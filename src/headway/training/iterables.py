"""Read DataLoaders and other iterables, so that a resumed run continues with the same batches.

A resumed run continues in the middle of an epoch in the cheapest way that is exact: from the state of a loader that
has one (`state_dict`, as torchdata's StatefulDataLoader), by skipping indices of a DataLoader without workers, or by
reading the epoch's first batches again. Default generators are seeded before the epoch and before each batch, and the
states of a DataLoader's own generators are part of checkpoints. `repeatability` checks the rest.

Several ranks: ranks that read different first batches have split the data already. If all read the same one, each rank
reads everything and trains on its own batches in turn.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from headway.core.errors import BadInput
from headway.data.loading.sampler import PaddingBatch
from headway.training.checkpoint.serialization import flatten, unflatten
from headway.training.context import log_line
from headway.training.determinism import DATA, RngSeeder
from headway.training.distributed.process_group import ProcessGroup
from headway.training.progress_state import TrainState
from headway.training.repeatability import RepeatCheck, batch_digest


class IterableReader:
    """Reads one iterable, epoch by epoch, on one rank."""

    def __init__(self, source: Any, group: ProcessGroup, seeder: RngSeeder) -> None:
        self.source, self._group, self._name = source, group, type(source).__name__
        let_workers_die_with_rank(source)
        distributed = isinstance(getattr(source, "sampler", None), DistributedSampler)
        alone = group.world.size == 1
        # Ranks that may read the same data must draw the same numbers: those of rank 0.
        self._seeder = seeder if alone or distributed else RngSeeder(seeder.seed)
        self._sampler = source.sampler if distributed else None
        self._split: bool | None = True if alone or distributed else None  # whether this rank reads its part only
        self._equal = alone or distributed  # all ranks read the same number of batches
        self.read_once = hasattr(source, "__next__")
        self._stateful = callable(getattr(source, "load_state_dict", None)) and hasattr(source, "state_dict")
        self._generators = own_generators(source)
        self._starts: list[Tensor] = []  # states of the generators at the beginning of the epoch
        self._epoch, self._ended, self._first = -1, False, 0
        self._last: Any = None  # the newest batch, which a rank without a batch repeats with weight 0
        self._restored: Mapping[str, Any] | None = None
        self._check = RepeatCheck(self._name)

    @property
    def rounds(self) -> int:
        """How many of the source's batches one micro-batch of every rank takes."""
        return 1 if self._split else self._group.world.size

    def epoch(self, position: TrainState, skip: int) -> Iterator[Any]:
        """Yield this rank's batches of the epoch after the first `skip`; PaddingBatch where only others have one."""
        restored = self._begin(position)
        inside = restored is not None and restored["epoch"] == self._epoch  # in the middle of an epoch
        at_state = self._stateful and inside
        if self._stateful and restored is not None:
            self.source.load_state_dict(restored["state"])
            self._ended = inside and bool(restored["ended"])
        if self._ended:
            return
        batches = self._read(skip, at_state=at_state, recorded=int(restored["first"]) if restored and inside else 0)
        if self._equal:
            yield from batches
            return
        first = next(batches, None)  # decides whether the ranks' data is split
        batches = _chain(first, batches)
        yield from self._agreed(batches) if self._split else self._in_turn(batches)

    def _begin(self, position: TrainState) -> Mapping[str, Any] | None:
        """Start an epoch; return the state to continue from, if this is the first epoch of a resumed run."""
        if self.read_once and self._epoch >= 0:
            raise BadInput(
                f"this {self._name} was read to its end in an earlier epoch, and gives no more batches",
                fix="create it anew for every epoch, or pass an iterable that starts again: a DataLoader, a list, a "
                "class with __iter__",
            )
        restored, self._restored = self._restored, None
        self._epoch, self._ended = position.passed, False
        if restored is not None:
            self._split = restored["split"] if self._split is None else self._split
            for generator, state in zip(self._generators, restored["generators"], strict=False):
                generator.set_state(state)
        self._starts = [generator.get_state() for generator in self._generators]
        if self._sampler is not None:
            self._sampler.set_epoch(self._epoch)
        restart_workers(self.source)
        return restored

    def _read(self, skip: int, *, at_state: bool, recorded: int) -> Iterator[Any]:
        """Yield the source's batches after the first `skip` of every rank, each read with its own random numbers."""
        number = skip * self.rounds if at_state else 0
        self._seeder.reseed(DATA, 0, self._epoch)
        batches = iter(self.source)
        by_index = skips_indices(batches)
        while True:
            number += 1
            self._seeder.reseed(DATA, number, self._epoch)
            try:
                if by_index and 1 < number <= skip * self.rounds:
                    batches._next_index()  # without loading the items
                    continue
                batch = next(batches)
            except StopIteration:
                break
            if number == 1:
                self._note_first(batch, recorded)
            if self._split is None:
                self._split = self._is_split(batch)
            self._last = batch
            if number > skip * self.rounds:
                yield batch
        self._ended = True
        if number == 1:
            self._refuse_empty()

    def _in_turn(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield every rank its own batch of each round. Only the last round may be incomplete."""
        rank, size = self._group.world.rank, self._group.world.size
        while True:
            found = [batch for _, batch in zip(range(size), batches, strict=False)]
            if not found:
                return
            yield found[rank] if rank < len(found) else PaddingBatch(found[-1])

    def _agreed(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of a rank that reads its own part, until no rank has one. Cost: a collective per batch."""
        while True:
            batch = next(batches, None)
            if self._group.all_reduce_sums([float(batch is not None)])[0] == 0:
                return
            if batch is None and self._last is None:
                self._refuse_empty()
            yield PaddingBatch(self._last) if batch is None else batch

    def _is_split(self, first: Any) -> bool:
        """Compare the first batches of all ranks. A collective."""
        world = self._group.world
        mine = [0.0] * world.size
        mine[world.rank] = float(batch_digest(first))
        found = self._group.all_reduce_sums(mine)
        if len(set(found)) not in (1, world.size):
            raise BadInput(
                f"some of the {world.size} ranks read the same batches of this {self._name}, and others do not",
                fix="use headway.runtime.Loader, or divide the data by run.world.rank and run.world.size",
            )
        split = len(set(found)) > 1
        if world.rank == 0:
            what = "each rank reads its own part" if split else "each rank reads all of it and trains on its batches"
            log_line(f"{self._name}: {what}" + ("" if split else "; headway.runtime.Loader reads only a rank's part"))
        return split

    def _note_first(self, batch: Any, recorded: int) -> None:
        """Compare the epoch's first batch with the checkpoint's record, and once with a second reading."""
        self._first = batch_digest(batch)
        if recorded not in (0, self._first):
            log_line(f"{self._name} gives other batches than before the restart: the results will not be bit-identical")
        if self._group.world.rank == 0 and not (self.read_once or self._stateful):
            self._check.start(self._first, self._read_again)

    def _read_again(self) -> Any:
        """Read the first batch again. Runs in a process of its own, whose changes are lost."""
        for generator, state in zip(self._generators, self._starts, strict=True):
            generator.set_state(state)
        if isinstance(self.source, DataLoader):
            self.source._iterator = None
            self.source.pin_memory = False
        self._seeder.reseed(DATA, 0, self._epoch)
        batches = iter(self.source)
        self._seeder.reseed(DATA, 1, self._epoch)
        return next(batches, None)

    def _refuse_empty(self) -> None:
        raise BadInput(
            f"this {self._name} gave no batch in epoch {self._epoch + 1}",
            where=f"rank {self._group.world.rank}",
            fix="check its data and filters; with several ranks or loader workers, there must be a part for each",
        )

    # State in checkpoints

    def state(self, position: TrainState) -> dict[str, Any]:
        """Return what a resumed run needs to continue at this position."""
        between = self._epoch < position.passed  # epochs: the next one starts from the present state
        return {
            "epoch": self._epoch,
            "stage": position.stage,
            "ended": self._ended,
            "first": self._first,
            "split": self._split,
            "generators": [generator.get_state() for generator in self._generators] if between else self._starts,
            "state": self.source.state_dict() if self._stateful else None,
        }

    def restore(self, state: Mapping[str, Any], position: TrainState) -> bool:
        """Continue from a state at the next epoch; return False if it belongs to another stage's data."""
        if state["stage"] != position.stage or state["epoch"] not in (position.passed, position.passed - 1):
            return False
        self._restored = state
        return True

    def describe_resume(self, batches: int) -> str:
        """Say how the batches before the position are passed over."""
        if self._stateful and self._restored is not None:
            return f"{self._name} continues from its saved state (without random numbers that its workers draw)"
        if skips_indices_of(self.source):
            return f"{self._name} continues after batch {batches} of the epoch"
        return f"{self._name} cannot start in the middle of an epoch: replaying {batches} batches"


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    if first is not None:
        yield first
        yield from rest


def own_generators(source: Any) -> list[torch.Generator]:
    """Return the generators that a DataLoader and its samplers were given, each once."""
    batch_sampler = getattr(source, "batch_sampler", None)
    holders = (source, getattr(source, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    found = [getattr(holder, "generator", None) for holder in holders]
    kept = {id(one): one for one in found if isinstance(one, torch.Generator) and one is not torch.default_generator}
    return list(kept.values())


def restart_workers(source: Any) -> None:
    """Restart persistent workers for every epoch: their random numbers then depend on the epoch alone."""
    if not (isinstance(source, DataLoader) and source.persistent_workers and source._iterator is not None):
        return
    source._iterator._shutdown_workers()  # type: ignore[attr-defined]
    source._iterator = None


_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends; leave Ctrl-C to the parent."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before prctl took effect
        os._exit(1)


class WorkerStart:
    """The `worker_init_fn` of a script's DataLoader: dies with its rank, and calls the script's own."""

    def __init__(self, own: Callable[[int], object] | None) -> None:
        self.own = own

    def __call__(self, worker: int) -> None:
        die_with_parent()
        if self.own is not None:
            self.own(worker)


def let_workers_die_with_rank(source: Any) -> None:
    """End a DataLoader's workers with the rank, however it ends.

    A worker of torch notices that its parent is gone, but waits for ever to hand over a batch that nobody reads.
    """
    if isinstance(source, DataLoader) and source.num_workers and not isinstance(source.worker_init_fn, WorkerStart):
        source.worker_init_fn = WorkerStart(source.worker_init_fn)


def skips_indices_of(source: Any) -> bool:
    """Whether `source` is a DataLoader of a map-style dataset without workers, whose batches depend on indices only."""
    return type(source) is DataLoader and source.num_workers == 0 and source._dataset_kind == 0


def skips_indices(batches: Any) -> bool:
    return type(batches).__name__ == "_SingleProcessDataLoaderIter" and batches._dataset_kind == 0


def length_of(source: Any) -> int | None:
    """Return the number of batches per epoch, or None if it is not known: streams have none."""
    try:
        return len(source)
    except TypeError:
        return None


def relative_size(source: Any, number: int) -> float:
    """Return the size of a DataLoader's batch relative to a full one, where it is known without reading; else 1."""
    size, sampler = getattr(source, "batch_size", None), getattr(source, "sampler", None)
    total = length_of(sampler) if isinstance(source, DataLoader) and size else None
    if not total or not size:
        return 1.0
    return max(1, min(int(size), total - number * int(size))) / int(size)


# The ranks' states as text: each rank has its own, and one file holds them all


def encode_state(state: Mapping[str, Any]) -> str:
    tree, tensors = flatten(state)
    bodies = {
        name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), _encoded(tensor)]
        for name, tensor in tensors.items()
    }
    return json.dumps({"tree": tree, "tensors": bodies})


def decode_state(text: str) -> dict[str, Any]:
    record = json.loads(text)
    tensors = {
        name: torch.frombuffer(bytearray(base64.b64decode(body)), dtype=getattr(torch, dtype)).reshape(shape)
        if body
        else torch.empty(shape, dtype=getattr(torch, dtype))
        for name, (dtype, shape, body) in record["tensors"].items()
    }
    state: dict[str, Any] = unflatten(record["tree"], tensors)
    return state


def _encoded(tensor: Tensor) -> str:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return base64.b64encode(flat.numpy().tobytes()).decode()
