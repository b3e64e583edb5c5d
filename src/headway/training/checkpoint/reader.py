"""Finding the newest good checkpoint. Never a silent restart: damage is named, and the one before is used.

No commit ever recorded: a fresh start. A recorded commit that cannot be verified: the one before it, with an event.
None left: NoCheckpoint. A store that does not answer is asked again: that is neither damage nor absence.
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
TRY_FOR_S = 300.0  # a store that does not answer
STALE_FOR_S = 10.0  # an object that was recorded and is not seen yet


@dataclass(frozen=True, slots=True)
class Loaded:
    """A verified checkpoint."""

    step: int
    manifest: dict[str, Any]
    state: dict[str, Any]
    environment: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Damage:
    """Why a recorded checkpoint was passed over."""

    step: int
    why: str


class CheckpointReader:
    """The committed checkpoints of a run, read with suspicion."""

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
        """Every commit that left a trace, in the record or as a manifest. The record may be damaged, or behind."""
        try:
            kept = {one.step: one for one in self.ask(lambda: read_last(self._store)) or ()}
        except Damaged as damage:
            self._say(f"{damage}; the manifests are read instead")
            kept = {}
        newest = max(kept, default=-1)
        for step in self.ask(self._listed):
            if step >= newest:  # written before the record, also where a step is committed twice
                kept[step] = self._described(step) or kept.get(step) or CheckpointEntry(step, 0)
            elif step not in kept:  # it was to be removed: whatever it was called is another's name by now
                kept[step] = CheckpointEntry(step, 0)
        return [kept[step] for step in sorted(kept)]

    def newest(self, damaged: list[Damage], *, below: int | None = None) -> Loaded | None:
        """The newest that verifies; None when none was ever recorded. What was passed over is put into `damaged`."""
        steps = [kept.step for kept in self.recorded() if below is None or kept.step < below]
        for step in reversed(steps):
            try:
                return self.load(step)
            except Damaged as damage:
                damaged.append(Damage(step, str(damage)))
        if not steps:
            return None
        raise NoCheckpoint(
            f"{len(steps)} checkpoints were recorded and none can be read: "
            + "; ".join(damage.why for damage in damaged),
            where=self._store.url,
            fix="restore the files, or start a new run: this one would begin again from nothing",
        )

    def load(self, step: int) -> Loaded:
        """One checkpoint, every byte of it checked. Damaged when anything is missing or is not what was written."""
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
        """A recorded object may be hidden for a moment by a stale view; then it is missing."""
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
        """A commit as its manifest describes it."""
        try:
            manifest = self.ask(lambda: read_record(self._store, f"{checkpoint_folder(step)}/manifest.json"))
            return CheckpointEntry(
                step, manifest["epoch"], tuple(manifest["names"]), manifest["score"], manifest["forever"]
            )
        except (Damaged, NotThere, KeyError, TypeError):
            return None  # it will be found out when it is read

    def ask(self, operation: Callable[[], Result]) -> Result:
        """Until the store answers. No permission and no bucket are answers; only silence is asked again."""
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
