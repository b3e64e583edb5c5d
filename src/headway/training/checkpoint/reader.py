"""Find, verify and load the newest valid checkpoint. A run never restarts from step 0 silently.

If no commit was ever recorded, the run starts fresh. If a recorded checkpoint fails verification, the one before it is
used and the damage is reported as an event. If none is left, NoCheckpoint is raised. A store that does not respond is
retried: that is neither damage nor absence.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from headway.core.errors import Denied, NoBucket, NoCheckpoint, NotThere, StoreError
from headway.core.retry import NO_LIMIT, RetryPolicy, retry
from headway.rundir.layout import checkpoint_folder
from headway.storage.base import Store
from headway.training.checkpoint.frozen import frozen_key
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

PIECE_BYTES = 64 << 20  # large files are read in pieces of this size …
_PIECES_AT_ONCE = 4  # … a few at a time: that also hides the latency of an object store


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A verified checkpoint."""

    step: int
    manifest: dict[str, Any]
    state: dict[str, Any]
    environment: dict[str, Any]
    frozen: dict[str, str | None] = field(default_factory=dict)  # tensors of frozen files; None: has another value now


@dataclass(frozen=True, slots=True)
class CheckpointContents:
    """The verified manifest and state of a checkpoint. Its tensors are in `files`."""

    manifest: dict[str, Any]
    state: str  # the JSON of the state without tensors

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        """The files of tensors by key, with size and checksum; those of frozen tensors first."""
        folder = checkpoint_folder(self.manifest["step"])
        with _damage_of(folder):
            frozen = {frozen_key(name): {**file, "sha256": name} for name, file in self._frozen.items()}
            return frozen | {f"{folder}/{name}": file for name, file in self.manifest["files"].items()}

    @property
    def _frozen(self) -> Mapping[str, Any]:
        return self.manifest.get("frozen", {})  # type: ignore[no-any-return]

    def assemble(self, bodies: Mapping[str, bytearray]) -> LoadedCheckpoint:
        """Make the checkpoint from the verified bytes of its files."""
        step = int(self.manifest["step"])
        origins = {frozen_key(name): name for name in self._frozen}
        tensors: dict[str, Tensor] = {}
        frozen: dict[str, str | None] = {}
        for key in self.files:
            found = parse_safetensors(bodies[key])
            tensors |= found
            frozen |= {name: origins.get(key) for name in found if key in origins or name in frozen}
        with _damage_of(checkpoint_folder(step)):
            record = decode_record(self.state.encode(), self.manifest["state"]["name"])
            state = unflatten(record["state"], tensors)
            return LoadedCheckpoint(step, self.manifest, state, record["environment"], frozen)


@contextmanager
def _damage_of(folder: str) -> Iterator[None]:
    """Turn what a malformed manifest leads to into CheckpointDamaged."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointDamaged(f"{folder}/manifest.json is damaged: {type(error).__name__}: {error}") from None


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
        raise none_readable(self._store, damaged)

    def load(self, step: int) -> LoadedCheckpoint:
        """Load one checkpoint and verify its checksums. Raises CheckpointDamaged if a file is missing or corrupt."""
        contents = self.read_contents(step)
        return contents.assemble({key: self.read_file(key, record) for key, record in contents.files.items()})

    def read_contents(self, step: int) -> CheckpointContents:
        """Read what a checkpoint consists of, but none of its tensors."""
        folder = checkpoint_folder(step)
        manifest = verify_checksum(self._read(f"{folder}/manifest.json"), f"{folder}/manifest.json")
        with _damage_of(folder):
            if manifest["step"] != step:
                raise CheckpointDamaged(f"{folder}/manifest.json is that of step {manifest['step']}")
            state = manifest["state"]
            text = bytes(self.read_file(f"{folder}/{state['name']}", state)).decode(errors="replace")
            return CheckpointContents(manifest, text)

    def read_file(self, key: str, record: Mapping[str, Any]) -> bytearray:
        """Read a file in pieces, several at a time, and verify its size and checksum on the way."""
        size, digest = int(record["bytes"]), hashlib.sha256()
        body = bytearray(size)
        last = size + 1  # a byte more than there should be
        spans = [(start, min(start + PIECE_BYTES, last)) for start in range(0, last, PIECE_BYTES)]
        found = 0
        for (start, stop), piece in zip(spans, self._read_pieces(key, spans), strict=True):
            digest.update(piece)
            body[start : min(stop, size)] = piece[: size - start]
            found += len(piece)
        if found > size:
            found = self.retry(lambda: self._store.stat(key)).size
        if found != size:
            raise CheckpointDamaged(f"{key} has {found} bytes of {size}")
        if digest.hexdigest() != record["sha256"]:
            raise CheckpointDamaged(f"the checksum of {key} differs")
        return body

    def _read_pieces(self, key: str, spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        if len(spans) == 1:
            yield self._read(key, spans[0])
            return
        pool = ThreadPoolExecutor(_PIECES_AT_ONCE)
        try:
            yield from pool.map(lambda span: self._read(key, span), spans)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, key: str, span: tuple[int, int] | None = None) -> bytes:
        """Read an object. Retries for `stale_for_s`, as a stale listing or cache may hide it; then raises
        CheckpointDamaged.
        """
        try:
            return retry(
                lambda: self.retry(lambda: self._store.read(key, span)),
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


def none_readable(store: Store, damaged: Sequence[SkippedCheckpoint]) -> NoCheckpoint:
    """Make the error for a run whose checkpoints are all damaged."""
    return NoCheckpoint(
        f"{len(damaged)} checkpoints were recorded, but none can be read: "
        + "; ".join(damage.why for damage in damaged),
        where=store.url,
        fix="restore the files, or start a new run: this one would start again from step 0",
    )


def _policy(total_s: float) -> RetryPolicy:
    return RetryPolicy(tries=NO_LIMIT, total_s=total_s, first_pause_s=0.1, longest_pause_s=10.0, factor=1.7)
