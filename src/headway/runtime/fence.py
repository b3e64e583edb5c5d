"""Writing under the lease: never over what a later attempt has written, however long this one was held still."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headway.errors import Conflict, NotThere
from headway.lease import LeaseLost
from headway.storage.base import ABSENT, Store


class Fence:
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
