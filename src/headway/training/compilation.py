"""Keep what torch.compile has compiled in the run folder, so that a restart does not compile again.

Rank 0 writes the artifacts of torch's caches after the first step and at the end, under a name that depends on
everything they are valid for: the versions, the device and its name. All ranks load them before the first forward.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from typing import Any

import torch

from headway.core.errors import NotThere, StoreError
from headway.storage.base import Store
from headway.training.context import log_line

_FACTS = ("python", "torch", "device", "gpu", "cuda", "cpu")


class CompileCache:
    """The compiled code of one run. Does nothing with versions of torch that cannot export it (before 2.7)."""

    def __init__(self, store: Store, environment: Mapping[str, Any], *, first: bool) -> None:
        facts = " ".join(f"{name}={environment.get(name)}" for name in _FACTS)
        self.key = f"compiled/{hashlib.sha256(facts.encode()).hexdigest()[:16]}.bin"
        self._store, self._first = store, first
        self._able = hasattr(torch.compiler, "save_cache_artifacts")
        self._written = b""  # the digest of what the run folder has

    def load(self) -> bool:
        """Fill torch's caches from the run folder; return whether there was anything."""
        if not self._able:
            return False
        try:
            body = self._store.read(self.key)
            torch.compiler.load_cache_artifacts(body)
        except NotThere:
            return False
        except (StoreError, RuntimeError, ValueError, EOFError) as error:  # only a speed-up: compile again
            log_line(f"compiled code could not be read, compiling again: {error}")
            return False
        self._written = hashlib.sha256(body).digest()
        return True

    def save_soon(self) -> None:
        """Write the artifacts on a thread, once the first step has compiled everything."""
        if self._able and self._first:
            threading.Thread(target=self.save, name="headway-compiled", daemon=True).start()

    def save(self) -> None:
        """Write the artifacts, unless the run folder has the same."""
        if not (self._able and self._first):
            return
        found = torch.compiler.save_cache_artifacts()
        if found is None or hashlib.sha256(found[0]).digest() == self._written:
            return
        try:
            self._store.write(self.key, found[0])
            self._written = hashlib.sha256(found[0]).digest()
        except StoreError as error:
            log_line(f"compiled code could not be kept: {error}")
