"""Does this store keep its word? Only where a conditional write can lose are runs shared safely. Five requests."""

from __future__ import annotations

import os
from weakref import WeakSet

from headway.errors import Conflict, StoreError
from headway.storage.base import ABSENT, Store

_trusted: WeakSet[Store] = WeakSet()  # asked once for each opened store


def require_conditional_put(store: Store) -> None:
    """StoreError where the store overwrites although the condition does not hold; silent where it is sound."""
    if store in _trusted:
        return
    key = f".headway-probe-{os.urandom(8).hex()}"
    try:
        first = store.write(key, b"first", when=ABSENT)
        if _overwrites(store, key, ABSENT):
            raise _refusal(store, "creates an object although one is there")
        store.write(key, b"second", when=first)
        if _overwrites(store, key, first):
            raise _refusal(store, "overwrites an object although another version is there")
    finally:
        store.delete(key)
    _trusted.add(store)


def _overwrites(store: Store, key: str, when: str) -> bool:
    try:
        store.write(key, b"must not be written", when=when)
    except Conflict:
        return False
    return True


def _refusal(store: Store, fault: str) -> StoreError:
    what = f"this store ignores the conditions of a write: it {fault}; two starts of one run would destroy each other"
    fix = "keep run folders on a disk, on NFS, or in a store with conditional writes (S3, GCS, Azure Blob, MinIO, R2)"
    return StoreError(what, where=store.url, fix=fix)
