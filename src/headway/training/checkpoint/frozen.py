"""Parameters that do not learn: written once per run, by content, and referred to by checkpoints.

Rank 0 writes them as checkpoints/frozen/<sha256>.safetensors; a manifest lists the files that belong to it. A run that
trains 1 % of its weights (LoRA) then writes about 3 % of them per checkpoint, with their optimizer state.

`requires_grad=False` does not mean that nobody changes a parameter (a moving average of a teacher, a target network).
So every snapshot compares fingerprints, which are computed on the device, and stores what has moved in the checkpoint
itself, in place of the frozen file's value.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headway.core.errors import NotThere
from headway.storage.base import Store
from headway.training.checkpoint.serialization import CheckpointDamaged, verify_checksum
from headway.training.checkpoint.staging import Layout, StagingBuffer

FOLDER = "checkpoints/frozen"
MIN_BYTES = 1 << 20  # less than this is not worth a file of its own
_KEY = re.compile(r"[0-9a-f]{64}")
_MANIFEST = re.compile(r"checkpoints/\d{8,}/manifest\.json")
_ROW = 1024
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Fingerprint = tuple[int, ...]


def frozen_key(name: str) -> str:
    """Return the store's key of a frozen file. Raises CheckpointDamaged if `name` is not the digest of a content."""
    if not _KEY.fullmatch(name):
        raise CheckpointDamaged(f"{name!r} is not the name of a frozen file")
    return f"{FOLDER}/{name}.safetensors"


def frozen_names(objects: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the paths of the modules' parameters that do not learn; none if they are small. Alike on every rank."""
    found = [
        path
        for name, obj in objects.items()
        if isinstance(obj, nn.Module)
        for key, parameter in obj.named_parameters()
        if not parameter.requires_grad and (path := f"{name}/{key}") in tensors
    ]
    return found if sum(tensors[path].nbytes for path in found) >= MIN_BYTES else []


@torch.no_grad()
def fingerprints(tensors: Mapping[str, Tensor]) -> dict[str, Fingerprint]:
    """Compute a number of each tensor's bits and their positions. Cost: one pass on the device, and one wait for it."""
    sums = {name: _weighted_sums(tensor) for name, tensor in tensors.items()}
    found: dict[str, Fingerprint] = {}
    for device in {each.device for each in sums.values()}:
        names = [name for name, each in sums.items() if each.device == device]
        rows = torch.stack([sums[name] for name in names]).cpu().tolist()
        found |= {name: tuple(row) for name, row in zip(names, rows, strict=True)}
    return found


def _weighted_sums(tensor: Tensor) -> Tensor:
    bits = tensor.detach().contiguous().reshape(-1).view(_INTEGERS[tensor.element_size()])
    whole = bits.numel() // _ROW * _ROW
    body, rest = bits[:whole].view(-1, _ROW), bits[whole:].to(torch.int64)
    lines, columns = body.sum(1, dtype=torch.int64), body.sum(0, dtype=torch.int64)
    return torch.stack([_weighted(lines), _weighted(columns), _weighted(rest)])


def _weighted(values: Tensor) -> Tensor:
    return (values * (2 * torch.arange(len(values), dtype=torch.int64, device=values.device) + 1)).sum()


@dataclass(slots=True)
class FrozenSnapshot:
    """The frozen part of one snapshot, on rank 0."""

    moved: list[str] = field(default_factory=list)  # have another value than their file
    files: set[str] = field(default_factory=set)  # what the checkpoint refers to
    image: StagingBuffer | None = None  # what no file has yet
    prints: dict[str, Fingerprint] = field(default_factory=dict)  # of the image's tensors
    ready: Any = None


class FrozenFiles:
    """What rank 0 knows of the run's frozen files. Snapshots are taken on the main thread, and written on another."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Fingerprint | None, str]] = {}  # path -> fingerprint in its file, and the file
        self._records: dict[str, dict[str, Any]] = {}  # file -> its size and digest, as in manifests
        self.used = False  # whether this run has frozen files

    def adopt(self, origins: Mapping[str, str | None], files: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take over the files of the restored checkpoint, once its values are in place.

        `origins` names the file of each frozen tensor; None if the checkpoint itself had another value.
        """
        self.used = self.used or bool(files)
        self._records |= {name: dict(record) for name, record in files.items()}
        prints = fingerprints({path: tensors[path] for path, file in origins.items() if file and path in tensors})
        for path, file in origins.items():
            self._known[path] = (prints.get(path), file or "")

    def snapshot(self, names: Iterable[str], tensors: Mapping[str, Tensor]) -> FrozenSnapshot:
        """Compare the frozen tensors with their files, and copy those that have none."""
        mine = {name: tensors[name] for name in names}
        prints = fingerprints(mine) if mine else {}
        found = FrozenSnapshot()
        new: dict[str, Tensor] = {}
        with self._lock:
            for name, tensor in mine.items():
                known, file = self._known.get(name, (None, None))
                if file is None:
                    new[name] = tensor
                elif known == prints[name]:
                    found.files.add(file)
                else:
                    found.moved.append(name)
        if new:
            found.image = StagingBuffer(Layout(new), new)
            found.image.fill(new)
            found.prints = {name: prints[name] for name in new}
        return found

    def write(self, snapshot: FrozenSnapshot) -> dict[str, dict[str, Any]]:
        """Write what has no file yet; return the records of all files that the checkpoint refers to."""
        if snapshot.image is not None:
            body = snapshot.image.bytes
            name = hashlib.sha256(body).hexdigest()
            self._store.write(frozen_key(name), body)
            with self._lock:
                self.used = True
                self._records[name] = {"bytes": len(body), "sha256": name}
                for path, fingerprint in snapshot.prints.items():
                    self._known[path] = (fingerprint, name)
            snapshot.files.add(name)
            snapshot.image = None
        return {name: self._records[name] for name in sorted(snapshot.files)}

    def prune(self, current: Iterable[str]) -> None:
        """Delete the files that no checkpoint of the run refers to. Keeps all if a manifest cannot be read."""
        found = {entry.key.rpartition("/")[2].partition(".")[0] for entry in self._store.list(f"{FOLDER}/")}
        if not found - set(current):
            return
        with self._lock:
            referred = {*current, *(file for _, file in self._known.values())}
        for entry in self._store.list("checkpoints/"):
            if not _MANIFEST.fullmatch(entry.key):
                continue
            try:
                referred |= verify_checksum(self._store.read(entry.key), entry.key).get("frozen", {}).keys()
            except NotThere:
                continue
            except CheckpointDamaged:
                return
        for name in found - referred:
            self._store.delete(f"{FOLDER}/{name}.safetensors")
