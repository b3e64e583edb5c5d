"""Which checkpoints there are, what they are called, and which may go. Kept in `checkpoints/last.json` by rank 0."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from headway.core.errors import Conflict, NotThere
from headway.rundir.layout import LAST_CHECKPOINT, checkpoint_folder, damage_of_kept
from headway.rundir.lease import LeaseLost
from headway.spec.model import Checkpoint
from headway.storage.base import ABSENT, Store
from headway.storage.parallel import for_each
from headway.storage.transfer import subfolders
from headway.training.checkpoint.serialization import Damaged, encode_record, read_record

# Writing under the lease: never over what a later attempt has written, however long this one was held still.


class FencedWriter:
    """For what attempts of a run write under the same name: manifests, pointers, the record of commits."""

    def __init__(self, store: Store, still_ours: Callable[[], bool] = lambda: True) -> None:
        self._store, self._still_ours = store, still_ours

    def require(self) -> None:
        """LeaseLost once a later attempt has begun."""
        if not self._still_ours():
            raise LeaseLost("this run was taken over by another start of it", where=self._store.url)

    def write(self, bodies: Mapping[str, bytes]) -> None:
        """One after the other, each only over the version that was there before the lease was last seen to be ours.

        So a later attempt wrote after that look, and its version is another: ours is refused. A refusal is also what it
        meets itself, once, where an attempt that was held still writes just before it: the lease tells who goes on.
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


LAST = LAST_CHECKPOINT
_FOLDER = re.compile(r"\d{8,}")


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """One committed checkpoint, as far as choosing among them needs."""

    step: int
    epoch: int
    names: tuple[str, ...] = ()
    score: float | None = None  # higher is better, whatever the metric
    forever: bool = False


class CheckpointIndex:
    """The committed checkpoints of a run, newest last, and the rule of which are kept."""

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
        self.protected = protected  # the one this attempt resumed from
        self._kept: dict[int, CheckpointEntry] = {}
        self._spared: set[int] = set()  # damaged: no checkpoint, and no rubbish either
        self._emptied: set[int] = set()  # on a disk their folders are still there

    @property
    def steps(self) -> list[int]:
        return sorted(self._kept)

    def adopt(self, kept: Iterable[CheckpointEntry]) -> None:
        """What earlier attempts left."""
        for one in kept:
            self._kept[one.step] = one
        for name in self._names:
            self._give(name)

    def settle(self) -> None:
        """Bring record and pointers up to what was adopted: a kill may have come between a manifest and them."""
        if not self._kept:
            return
        wanted = self._pointers(self._names) | {LAST: encode_record(self._body())}
        self.fence.write({key: body for key, body in wanted.items() if self._found(key) != body})

    def forget(self, step: int) -> None:
        """A checkpoint that proved to be damaged: it counts no more, and its files are left for people to look at."""
        self._kept.pop(step, None)
        self._spared.add(step)

    def named(self, name: str) -> int | None:
        """The step a name points to: the newest that was given it."""
        return max((one.step for one in self._kept.values() if name in one.names), default=None)

    @property
    def newest_best(self) -> int | None:
        """The best of the run, or of the newest phase that has one."""
        steps = [s for s, one in self._kept.items() if any(n == "best" or n.endswith("_best") for n in one.names)]
        return max(steps, default=None)

    def record(self, new: CheckpointEntry) -> None:
        """Note a commit and point its names at it. Written before anything is removed."""
        self._kept[new.step] = new
        self._spared.discard(new.step)
        self._emptied = {step for step in self._emptied if step < new.step}  # a run that was rolled back comes by again
        for name in new.names:
            self._give(name)
        self.fence.write(self._pointers(new.names) | {LAST: encode_record(self._body())})

    def prune(self) -> None:
        """Remove what the rule does not keep: first from the record, then the manifest, then the files.

        So too what lies below the newest commit and is none: parts that others did not follow up, half a removal.
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
        """Every rank writes its parts in order, so nobody writes below a commit any more."""
        found = {int(name) for name in subfolders(self._store, "checkpoints/") if _FOLDER.fullmatch(name)}
        known = self._spared | self._emptied | self._kept.keys()
        return {step for step in found - known if step < max(self._kept)}

    @property
    def _names(self) -> set[str]:
        return {name for one in self._kept.values() for name in one.names}

    def _give(self, name: str) -> None:
        """A name is the newest one's alone."""
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
    """The recorded commits; None when none was ever recorded. Damaged when the record is."""
    try:
        record = read_record(store, LAST)
    except NotThere:
        return None
    wrong = damage_of_kept(record.get("kept"))
    try:
        if wrong is None:
            return [CheckpointEntry(**{**one, "names": tuple(one["names"])}) for one in record["kept"]]
    except (KeyError, TypeError):
        wrong = "it does not say which checkpoints there are"
    raise Damaged(f"{LAST} is damaged: {wrong}") from None


def remove(store: Store, step: int) -> None:
    """The manifest first: what is half removed is no checkpoint."""
    folder = checkpoint_folder(step)
    store.delete(f"{folder}/manifest.json")
    for_each(store.delete, [entry.key for entry in store.list(f"{folder}/")])
