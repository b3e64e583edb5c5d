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
from headway.training.checkpoint.serialization import CheckpointDamaged, encode_record, read_record

# Fenced writes


class FencedWriter:
    """Compare-and-swap writes guarded by the lease, so that a stalled attempt cannot overwrite a newer one.

    For objects that all attempts of a run write under the same key: manifests, pointers, the checkpoint index.
    """

    def __init__(self, store: Store, holds_lease: Callable[[], bool] = lambda: True) -> None:
        self._store, self._holds_lease = store, holds_lease

    def require_lease(self) -> None:
        """Raise LeaseLost if a later attempt has begun."""
        if not self._holds_lease():
            raise LeaseLost("another attempt has taken over this run", where=self._store.url)

    def write(self, bodies: Mapping[str, bytes]) -> None:
        """Write the objects in order, each only over the version it had before the last check of the lease.

        If a later attempt has written since that check, the version differs and the store refuses our write. The later
        attempt can be refused once itself, if a stalled attempt writes just before it. After a refusal the versions are
        read and the lease is checked again, which only the later attempt passes.
        """
        while True:
            seen = {key: self._version(key) for key in bodies}
            self.require_lease()
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

INDEX_KEY = LAST_CHECKPOINT
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
        holds_lease: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store, self._rule = store, rule
        self.fenced_writer = FencedWriter(store, holds_lease)
        self.protected = protected  # the step this attempt resumed from
        self._entries: dict[int, CheckpointEntry] = {}
        self._damaged: set[int] = set()  # damaged ones: not in the index, but not deleted either
        self._deleted: set[int] = set()  # deleted ones: on a local disk their empty folders are still listed

    @property
    def steps(self) -> list[int]:
        return sorted(self._entries)

    def add_existing(self, entries: Iterable[CheckpointEntry]) -> None:
        """Add the checkpoints of earlier attempts."""
        for entry in entries:
            self._entries[entry.step] = entry
        for name in self._names:
            self._reassign_name(name)

    def rewrite(self) -> None:
        """Rewrite the index and pointers where they lag behind the manifests: a kill may have come in between."""
        if not self._entries:
            return
        expected = self._pointers(self._names) | {INDEX_KEY: encode_record(self._record())}
        self.fenced_writer.write({key: body for key, body in expected.items() if self._read_or_none(key) != body})

    def exclude(self, step: int) -> None:
        """Drop a damaged checkpoint from the index; its files stay for inspection."""
        self._entries.pop(step, None)
        self._damaged.add(step)

    def step_named(self, name: str) -> int | None:
        """Return the step that a name points to, which is the newest checkpoint of that name, or None."""
        return max((entry.step for entry in self._entries.values() if name in entry.names), default=None)

    @property
    def newest_best(self) -> int | None:
        """The step of the run's best checkpoint, or that of the newest phase which has one; None if there is none."""
        steps = [
            s for s, entry in self._entries.items() if any(n == "best" or n.endswith("_best") for n in entry.names)
        ]
        return max(steps, default=None)

    def record(self, new: CheckpointEntry) -> None:
        """Add a committed checkpoint, point its names at it, and write the index, all before anything is deleted."""
        self._entries[new.step] = new
        self._damaged.discard(new.step)
        self._deleted = {step for step in self._deleted if step < new.step}  # a rolled-back run repeats later steps
        for name in new.names:
            self._reassign_name(name)
        self.fenced_writer.write(self._pointers(new.names) | {INDEX_KEY: encode_record(self._record())})

    def prune(self) -> None:
        """Delete checkpoints that retention does not keep: first the index entry, then the manifest, then the files.

        Also delete uncommitted folders of steps before the newest commit: parts of a checkpoint that other ranks did
        not complete, and half-finished deletions.
        """
        expired = set(self._entries) - self._steps_to_keep()
        if expired:
            for step in expired:
                del self._entries[step]
            self.fenced_writer.write({INDEX_KEY: encode_record(self._record())})
        for step in sorted(expired | self._uncommitted_steps()):
            delete_checkpoint(self._store, step)
            self._deleted.add(step)

    def _uncommitted_steps(self) -> set[int]:
        """Return the uncommitted steps before the newest commit.

        Every rank writes its parts in the order of steps, so no rank still writes to one of these.
        """
        found = {int(name) for name in subfolders(self._store, "checkpoints/") if _FOLDER.fullmatch(name)}
        known = self._damaged | self._deleted | self._entries.keys()
        return {step for step in found - known if step < max(self._entries)}

    @property
    def _names(self) -> set[str]:
        return {name for entry in self._entries.values() for name in entry.names}

    def _reassign_name(self, name: str) -> None:
        """Take a name away from all checkpoints but the newest that has it."""
        owner = self.step_named(name)
        for step, entry in self._entries.items():
            if step != owner and name in entry.names:
                self._entries[step] = replace(entry, names=tuple(other for other in entry.names if other != name))

    def _steps_to_keep(self) -> set[int]:
        steps = self.steps
        kept = set(steps[-self._rule.keep_last :])
        scored = [entry for entry in self._entries.values() if entry.score is not None]
        scored.sort(key=lambda one: (one.score, one.step))
        kept |= {one.step for one in scored[-self._rule.keep_best :]} if self._rule.keep_best else set()
        kept |= {one.step for one in self._entries.values() if one.forever or one.names}
        if self.protected is not None:
            kept.add(self.protected)
        return kept

    def _record(self) -> dict[str, Any]:
        steps = self.steps
        return {"step": steps[-1], "steps": steps, "kept": [asdict(self._entries[step]) for step in steps]}

    def _pointers(self, names: Iterable[str]) -> dict[str, bytes]:
        return {f"checkpoints/{name}.json": encode_record({"step": self.step_named(name)}) for name in names}

    def _read_or_none(self, key: str) -> bytes | None:
        try:
            return self._store.read(key)
        except NotThere:
            return None


def read_index(store: Store) -> list[CheckpointEntry] | None:
    """Read the index; return None if none was ever written. Raises CheckpointDamaged if it is corrupt."""
    try:
        record = read_record(store, INDEX_KEY)
    except NotThere:
        return None
    problem = checkpoint_list_problem(record.get("kept"))
    try:
        if problem is None:
            return [CheckpointEntry(**{**entry, "names": tuple(entry["names"])}) for entry in record["kept"]]
    except (KeyError, TypeError):
        problem = "it does not list the checkpoints"
    raise CheckpointDamaged(f"{INDEX_KEY} is damaged: {problem}") from None


def delete_checkpoint(store: Store, step: int) -> None:
    """Delete a checkpoint, manifest first, so that a half-deleted one does not count as a checkpoint."""
    folder = checkpoint_folder(step)
    store.delete(f"{folder}/manifest.json")
    map_parallel(store.delete, [entry.key for entry in store.list(f"{folder}/")])
