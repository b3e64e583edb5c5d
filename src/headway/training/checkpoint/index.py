"""The checkpoint index: committed checkpoints, their names (`best`, …), retention, and lease-fenced writes.

Rank 0 writes the index to `checkpoints/last.json`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from headway.core.errors import Conflict, NotThere
from headway.rundir.layout import LAST_CHECKPOINT, checkpoint_folder, checkpoint_list_problem
from headway.rundir.lease import LeaseLost
from headway.spec.model import Checkpoint
from headway.storage.base import ABSENT, Store
from headway.storage.transfer import map_parallel, subfolders
from headway.training.checkpoint.serialization import Damaged, encode_record, read_record

# Fenced writes


class FencedWriter:
    """Compare-and-swap writes guarded by the lease, so that a stalled attempt cannot overwrite a newer one.

    For objects that all attempts of a run write under the same key: manifests, pointers, the checkpoint index.
    """

    def __init__(self, store: Store, still_ours: Callable[[], bool] = lambda: True) -> None:
        self._store, self._still_ours = store, still_ours

    def require(self) -> None:
        """Raise LeaseLost if a later attempt has begun."""
        if not self._still_ours():
            raise LeaseLost("this run was taken over by another start of it", where=self._store.url)

    def write(self, bodies: Mapping[str, bytes]) -> None:
        """Write the objects in order, each only over the version it had before the last check of the lease.

        If a later attempt has written since that check, the version differs and the store refuses our write. The later
        attempt can be refused once itself, if a stalled attempt writes just before it. After a refusal the versions are
        read and the lease is checked again, which only the later attempt passes.
        """
        while True:
            seen = {key: self._version(key) for key in bodies}
            self.require()
            try:
                for key, body in bodies.items():
                    self._store.write(key, body, when=seen[key])
            except Conflict:
                continue
            return

    def _version(self, key: str) -> str:
        try:
            return self._store.stat(key).version
        except NotThere:
            return ABSENT


# Index and retention

LAST = LAST_CHECKPOINT
_FOLDER = re.compile(r"\d{8,}")


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """Index entry of one committed checkpoint."""

    step: int
    epoch: int
    names: tuple[str, ...] = ()
    score: float | None = None  # higher is better, whatever the metric
    forever: bool = False


class CheckpointIndex:
    """The committed checkpoints of a run, newest last, and their retention policy."""

    def __init__(
        self,
        store: Store,
        rule: Checkpoint,
        *,
        protected: int | None = None,
        still_ours: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store, self._rule = store, rule
        self.fence = FencedWriter(store, still_ours)
        self.protected = protected  # the step this attempt resumed from
        self._kept: dict[int, CheckpointEntry] = {}
        self._spared: set[int] = set()  # damaged ones: not in the index, but not deleted either
        self._emptied: set[int] = set()  # deleted ones: on a local disk their empty folders are still listed

    @property
    def steps(self) -> list[int]:
        return sorted(self._kept)

    def adopt(self, kept: Iterable[CheckpointEntry]) -> None:
        """Add the checkpoints of earlier attempts."""
        for one in kept:
            self._kept[one.step] = one
        for name in self._names:
            self._give(name)

    def settle(self) -> None:
        """Rewrite the index and pointers where they lag behind the manifests: a kill may have come in between."""
        if not self._kept:
            return
        wanted = self._pointers(self._names) | {LAST: encode_record(self._body())}
        self.fence.write({key: body for key, body in wanted.items() if self._found(key) != body})

    def forget(self, step: int) -> None:
        """Drop a damaged checkpoint from the index; its files stay for inspection."""
        self._kept.pop(step, None)
        self._spared.add(step)

    def named(self, name: str) -> int | None:
        """Return the step that a name points to, which is the newest checkpoint of that name, or None."""
        return max((one.step for one in self._kept.values() if name in one.names), default=None)

    @property
    def newest_best(self) -> int | None:
        """The step of the run's best checkpoint, or that of the newest phase which has one; None if there is none."""
        steps = [s for s, one in self._kept.items() if any(n == "best" or n.endswith("_best") for n in one.names)]
        return max(steps, default=None)

    def record(self, new: CheckpointEntry) -> None:
        """Add a committed checkpoint, point its names at it, and write the index, all before anything is deleted."""
        self._kept[new.step] = new
        self._spared.discard(new.step)
        self._emptied = {step for step in self._emptied if step < new.step}  # a rolled-back run repeats later steps
        for name in new.names:
            self._give(name)
        self.fence.write(self._pointers(new.names) | {LAST: encode_record(self._body())})

    def prune(self) -> None:
        """Delete checkpoints that retention does not keep: first the index entry, then the manifest, then the files.

        Also delete uncommitted folders of steps before the newest commit: parts of a checkpoint that other ranks did
        not complete, and half-finished deletions.
        """
        going = set(self._kept) - self._keepers()
        if going:
            for step in going:
                del self._kept[step]
            self.fence.write({LAST: encode_record(self._body())})
        for step in sorted(going | self._rubbish()):
            remove(self._store, step)
            self._emptied.add(step)

    def _rubbish(self) -> set[int]:
        """Return the uncommitted steps before the newest commit.

        Every rank writes its parts in the order of steps, so no rank still writes to one of these.
        """
        found = {int(name) for name in subfolders(self._store, "checkpoints/") if _FOLDER.fullmatch(name)}
        known = self._spared | self._emptied | self._kept.keys()
        return {step for step in found - known if step < max(self._kept)}

    @property
    def _names(self) -> set[str]:
        return {name for one in self._kept.values() for name in one.names}

    def _give(self, name: str) -> None:
        """Take a name away from all checkpoints but the newest that has it."""
        owner = self.named(name)
        for step, one in self._kept.items():
            if step != owner and name in one.names:
                self._kept[step] = replace(one, names=tuple(other for other in one.names if other != name))

    def _keepers(self) -> set[int]:
        steps = self.steps
        keepers = set(steps[-self._rule.keep_last :])
        scored = [one for one in self._kept.values() if one.score is not None]
        scored.sort(key=lambda one: (one.score, one.step))
        keepers |= {one.step for one in scored[-self._rule.keep_best :]} if self._rule.keep_best else set()
        keepers |= {one.step for one in self._kept.values() if one.forever or one.names}
        if self.protected is not None:
            keepers.add(self.protected)
        return keepers

    def _body(self) -> dict[str, Any]:
        steps = self.steps
        return {"step": steps[-1], "steps": steps, "kept": [asdict(self._kept[step]) for step in steps]}

    def _pointers(self, names: Iterable[str]) -> dict[str, bytes]:
        return {f"checkpoints/{name}.json": encode_record({"step": self.named(name)}) for name in names}

    def _found(self, key: str) -> bytes | None:
        try:
            return self._store.read(key)
        except NotThere:
            return None


def read_last(store: Store) -> list[CheckpointEntry] | None:
    """Read the index; return None if none was ever written. Raises Damaged if it is corrupt."""
    try:
        record = read_record(store, LAST)
    except NotThere:
        return None
    wrong = checkpoint_list_problem(record.get("kept"))
    try:
        if wrong is None:
            return [CheckpointEntry(**{**one, "names": tuple(one["names"])}) for one in record["kept"]]
    except (KeyError, TypeError):
        wrong = "it does not say which checkpoints there are"
    raise Damaged(f"{LAST} is damaged: {wrong}") from None


def remove(store: Store, step: int) -> None:
    """Delete a checkpoint, manifest first, so that a half-deleted one does not count as a checkpoint."""
    folder = checkpoint_folder(step)
    store.delete(f"{folder}/manifest.json")
    map_parallel(store.delete, [entry.key for entry in store.list(f"{folder}/")])
