"""Find, verify and load the newest valid checkpoint. A run never restarts from step 0 silently.

If no commit was ever recorded, the run starts fresh. If a recorded checkpoint fails verification, the one before it is
used and the damage is reported as an event. If none is left, NoCheckpoint is raised. A store that does not respond is
retried: that is neither damage nor absence.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from headway.core.errors import Denied, NoBucket, NoCheckpoint, NotThere, StoreError
from headway.core.retry import NO_LIMIT, RetryPolicy, retry
from headway.rundir.layout import checkpoint_folder
from headway.storage.base import Store
from headway.training.checkpoint.index import CheckpointEntry, read_index
from headway.training.checkpoint.serialization import (
    CheckpointDamaged,
    decode_record,
    read_record,
    unflatten,
    verify_checksum,
)
from headway.training.checkpoint.staging import parse_safetensors

Result = TypeVar("Result")
_MANIFEST = re.compile(r"checkpoints/(\d{8,})/manifest\.json$")
RETRY_FOR_S = 300.0  # how long to retry a store that does not respond
RETRY_MISSING_FOR_S = 10.0  # how long to retry a recorded object that is not visible yet


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A verified checkpoint."""

    step: int
    manifest: dict[str, Any]
    state: dict[str, Any]
    environment: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SkippedCheckpoint:
    """Why a recorded checkpoint was skipped."""

    step: int
    why: str


class CheckpointReader:
    """Reader of a run's committed checkpoints that verifies every byte."""

    def __init__(
        self,
        store: Store,
        *,
        try_for_s: float = RETRY_FOR_S,
        stale_for_s: float = RETRY_MISSING_FOR_S,
        log: Callable[[str], None] = lambda text: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._log, self._sleep = store, log, sleep
        self._try_for_s, self._stale_for_s = try_for_s, stale_for_s

    def list_commits(self) -> list[CheckpointEntry]:
        """Return all commits, from the index and the manifests: the index may be damaged or out of date."""
        try:
            entries = {entry.step: entry for entry in self.retry(lambda: read_index(self._store)) or ()}
        except CheckpointDamaged as damage:
            self._log(f"{damage}; reading the manifests instead")
            entries = {}
        newest = max(entries, default=-1)
        for step in self.retry(self._manifest_steps):
            if step >= newest:  # the manifest is written before the index, also if a step is committed twice
                entries[step] = self._entry_from_manifest(step) or entries.get(step) or CheckpointEntry(step, 0)
            elif step not in entries:  # was about to be deleted: its names belong to other checkpoints by now
                entries[step] = CheckpointEntry(step, 0)
        return [entries[step] for step in sorted(entries)]

    def load_newest(self, damaged: list[SkippedCheckpoint], *, below: int | None = None) -> LoadedCheckpoint | None:
        """Load the newest checkpoint that passes verification; return None if none was ever recorded.

        Appends the skipped ones to `damaged`. Raises NoCheckpoint if all recorded ones are damaged.
        """
        steps = [entry.step for entry in self.list_commits() if below is None or entry.step < below]
        for step in reversed(steps):
            try:
                return self.load(step)
            except CheckpointDamaged as damage:
                damaged.append(SkippedCheckpoint(step, str(damage)))
        if not steps:
            return None
        raise NoCheckpoint(
            f"{len(steps)} checkpoints were recorded, but none can be read: "
            + "; ".join(damage.why for damage in damaged),
            where=self._store.url,
            fix="restore the files, or start a new run: this one would start again from step 0",
        )

    def load(self, step: int) -> LoadedCheckpoint:
        """Load one checkpoint and verify its checksums. Raises CheckpointDamaged if a file is missing or corrupt."""
        folder = checkpoint_folder(step)
        manifest = verify_checksum(self._read(f"{folder}/manifest.json"), f"{folder}/manifest.json")
        try:
            if manifest["step"] != step:
                raise CheckpointDamaged(f"{folder}/manifest.json is that of step {manifest['step']}")
            state_file, files = manifest["state"], manifest["files"]
            record = decode_record(self._read_verified(folder, state_file["name"], state_file), state_file["name"])
            tensors: dict[str, Tensor] = {}
            for name, file in files.items():
                tensors |= parse_safetensors(bytearray(self._read_verified(folder, name, file)))
            state = unflatten(record["state"], tensors)
            return LoadedCheckpoint(step, manifest, state, record["environment"])
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointDamaged(f"{folder}/manifest.json is damaged: {type(error).__name__}: {error}") from None

    def _read_verified(self, folder: str, name: str, file: dict[str, Any]) -> bytes:
        key = f"{folder}/{name}"
        body = self._read(key)
        if len(body) != file["bytes"]:
            raise CheckpointDamaged(f"{key} has {len(body)} bytes of {file['bytes']}")
        if hashlib.sha256(body).hexdigest() != file["sha256"]:
            raise CheckpointDamaged(f"the checksum of {key} differs")
        return body

    def _read(self, key: str) -> bytes:
        """Read an object. Retries for `stale_for_s`, as a stale listing or cache may hide it; then raises
        CheckpointDamaged.
        """
        try:
            return retry(
                lambda: self.retry(lambda: self._store.read(key)),
                _policy(self._stale_for_s),
                on=NotThere,
                sleep=self._sleep,
            )
        except NotThere:
            raise CheckpointDamaged(f"{key} is missing") from None

    def _manifest_steps(self) -> list[int]:
        found = (_MANIFEST.search(entry.key) for entry in self._store.list("checkpoints/"))
        return [int(match[1]) for match in found if match]

    def _entry_from_manifest(self, step: int) -> CheckpointEntry | None:
        """Return the index entry of a commit from its manifest, or None if that is unreadable."""
        try:
            manifest = self.retry(lambda: read_record(self._store, f"{checkpoint_folder(step)}/manifest.json"))
            return CheckpointEntry(
                step, manifest["epoch"], tuple(manifest["names"]), manifest["score"], manifest["forever"]
            )
        except (CheckpointDamaged, NotThere, KeyError, TypeError):
            return None  # `load` will report the damage

    def retry(self, operation: Callable[[], Result]) -> Result:
        """Retry an operation with back-off until the store responds or `try_for_s` is over.

        NotThere, Denied and NoBucket are responses and raised at once.
        """
        logged = False

        def report(error: Exception) -> None:
            nonlocal logged
            if not logged:
                self._log(f"the store does not respond, retrying: {error}")
                logged = True

        return retry(
            operation,
            _policy(self._try_for_s),
            on=StoreError,
            unless=(NotThere, Denied, NoBucket),
            on_failure=report,
            sleep=self._sleep,
        )


def _policy(total_s: float) -> RetryPolicy:
    return RetryPolicy(tries=NO_LIMIT, total_s=total_s, first_pause_s=0.1, longest_pause_s=10.0, factor=1.7)
