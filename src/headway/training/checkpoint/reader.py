"""Find, verify and load the newest valid checkpoint. A run never restarts from step 0 silently.

If no commit was ever recorded, the run starts fresh. If a recorded checkpoint fails verification, the one before it is
used and the damage is reported as an event. If none is left, NoCheckpoint is raised. A store that does not respond is
retried: that is neither damage nor absence.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from headway.core.errors import Denied, NoBucket, NoCheckpoint, NotThere, StoreError
from headway.rundir.layout import checkpoint_folder
from headway.storage.base import Store
from headway.training.checkpoint.index import CheckpointEntry, read_last
from headway.training.checkpoint.serialization import Damaged, build, check_checksum, decode_record, read_record
from headway.training.checkpoint.staging import read_image

Result = TypeVar("Result")
_MANIFEST = re.compile(r"checkpoints/(\d{8,})/manifest\.json$")
TRY_FOR_S = 300.0  # how long to retry a store that does not respond
STALE_FOR_S = 10.0  # how long to retry a recorded object that is not visible yet


@dataclass(frozen=True, slots=True)
class Loaded:
    """A verified checkpoint."""

    step: int
    manifest: dict[str, Any]
    state: dict[str, Any]
    environment: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Damage:
    """Why a recorded checkpoint was skipped."""

    step: int
    why: str


class CheckpointReader:
    """Reader of a run's committed checkpoints that verifies every byte."""

    def __init__(
        self,
        store: Store,
        *,
        try_for_s: float = TRY_FOR_S,
        stale_for_s: float = STALE_FOR_S,
        say: Callable[[str], None] = lambda text: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._say, self._sleep = store, say, sleep
        self._try_for_s, self._stale_for_s = try_for_s, stale_for_s

    def recorded(self) -> list[CheckpointEntry]:
        """Return all commits, from the index and the manifests: the index may be damaged or out of date."""
        try:
            kept = {one.step: one for one in self.ask(lambda: read_last(self._store)) or ()}
        except Damaged as damage:
            self._say(f"{damage}; the manifests are read instead")
            kept = {}
        newest = max(kept, default=-1)
        for step in self.ask(self._listed):
            if step >= newest:  # the manifest is written before the index, also if a step is committed twice
                kept[step] = self._described(step) or kept.get(step) or CheckpointEntry(step, 0)
            elif step not in kept:  # was about to be deleted: its names belong to other checkpoints by now
                kept[step] = CheckpointEntry(step, 0)
        return [kept[step] for step in sorted(kept)]

    def newest(self, damaged: list[Damage], *, below: int | None = None) -> Loaded | None:
        """Load the newest checkpoint that passes verification; return None if none was ever recorded.

        Appends the skipped ones to `damaged`. Raises NoCheckpoint if all recorded ones are damaged.
        """
        steps = [kept.step for kept in self.recorded() if below is None or kept.step < below]
        for step in reversed(steps):
            try:
                return self.load(step)
            except Damaged as damage:
                damaged.append(Damage(step, str(damage)))
        if not steps:
            return None
        raise NoCheckpoint(
            f"{len(steps)} checkpoints were recorded, but none can be read: "
            + "; ".join(damage.why for damage in damaged),
            where=self._store.url,
            fix="restore the files, or start a new run: this one would start again from step 0",
        )

    def load(self, step: int) -> Loaded:
        """Load one checkpoint and verify all its checksums. Raises Damaged if a file is missing or corrupt."""
        folder = checkpoint_folder(step)
        manifest = check_checksum(self._bytes(f"{folder}/manifest.json"), f"{folder}/manifest.json")
        try:
            if manifest["step"] != step:
                raise Damaged(f"{folder}/manifest.json is that of step {manifest['step']}")
            state_file, files = manifest["state"], manifest["files"]
            record = decode_record(self._verified(folder, state_file["name"], state_file), state_file["name"])
            tensors: dict[str, Tensor] = {}
            for name, file in files.items():
                tensors |= read_image(bytearray(self._verified(folder, name, file)))
            state = build(record["state"], tensors)
            return Loaded(step, manifest, state, record["environment"])
        except (KeyError, TypeError, AttributeError) as error:
            raise Damaged(f"{folder}/manifest.json is damaged: {type(error).__name__}: {error}") from None

    def _verified(self, folder: str, name: str, file: dict[str, Any]) -> bytes:
        key = f"{folder}/{name}"
        body = self._bytes(key)
        if len(body) != file["bytes"]:
            raise Damaged(f"{key} has {len(body)} bytes of {file['bytes']}")
        if hashlib.sha256(body).hexdigest() != file["sha256"]:
            raise Damaged(f"{key} is not what was written: its checksum differs")
        return body

    def _bytes(self, key: str) -> bytes:
        """Read an object. Retries for `stale_for_s`, as a stale listing or cache may hide it; then raises Damaged."""
        for pause in (*_pauses(self._stale_for_s), None):
            try:
                return self.ask(lambda: self._store.read(key))
            except NotThere:
                if pause is not None:
                    self._sleep(pause)
        raise Damaged(f"{key} is missing")

    def _listed(self) -> list[int]:
        found = (_MANIFEST.search(entry.key) for entry in self._store.list("checkpoints/"))
        return [int(match[1]) for match in found if match]

    def _described(self, step: int) -> CheckpointEntry | None:
        """Return the index entry of a commit from its manifest, or None if that is unreadable."""
        try:
            manifest = self.ask(lambda: read_record(self._store, f"{checkpoint_folder(step)}/manifest.json"))
            return CheckpointEntry(
                step, manifest["epoch"], tuple(manifest["names"]), manifest["score"], manifest["forever"]
            )
        except (Damaged, NotThere, KeyError, TypeError):
            return None  # `load` will report the damage

    def ask(self, operation: Callable[[], Result]) -> Result:
        """Retry an operation with back-off until the store responds or `try_for_s` is over.

        NotThere, Denied and NoBucket are responses and raised at once.
        """
        said = False
        for pause in (*_pauses(self._try_for_s), None):
            try:
                return operation()
            except (NotThere, Denied, NoBucket):
                raise
            except StoreError as error:
                if pause is None:
                    raise
                if not said:
                    self._say(f"the store does not answer, trying again: {error}")
                    said = True
                self._sleep(pause)
        raise AssertionError("unreachable")


def _pauses(total_s: float) -> Iterator[float]:
    pause, spent = 0.1, 0.0
    while spent < total_s:
        yield pause
        spent += pause
        pause = min(10.0, pause * 1.7)
