"""Stores for run folders behind five methods: a local folder, gs://, s3://, az:// or memory://."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote
from weakref import WeakSet

from headway.core.errors import BadInput, Conflict, StoreError
from headway.plugins import STORES
from headway.storage.base import ABSENT, ObjectInfo, Store
from headway.storage.transfer import fetch_file, send_file, subfolders

if TYPE_CHECKING:
    from headway.core.retry import RetryPolicy


# Open stores by URL; join and compare URLs; check that a store honours conditional writes.
#
# Costs nothing to import: a store's dependencies are loaded when one is opened.


_probed: WeakSet[Store] = WeakSet()  # checked once per opened store


def require_conditional_put(store: Store) -> None:
    """Check that the store honours the conditions of writes (a compare-and-swap probe).

    Runs are safe to share only where a conditional write can fail. Cost: five requests, once per opened store.

    Args:
        store: The store.

    Raises:
        StoreError: If it overwrites an object although the condition is false.

    Example:
        >>> from headway.storage import open_store, require_conditional_put
        >>> require_conditional_put(open_store("runs"))
    """
    if store in _probed:
        return
    key = f".headway-probe-{os.urandom(8).hex()}"
    try:
        first = store.write(key, b"first", when=ABSENT)
        if _overwrites(store, key, ABSENT):
            raise _unconditional_write_error(store, "overwrites an object that must not exist yet")
        store.write(key, b"second", when=first)
        if _overwrites(store, key, first):
            raise _unconditional_write_error(store, "overwrites an object whose version has changed")
    finally:
        store.delete(key)
    _probed.add(store)


def _overwrites(store: Store, key: str, when: str) -> bool:
    try:
        store.write(key, b"must not be written", when=when)
    except Conflict:
        return False
    return True


def _unconditional_write_error(store: Store, fault: str) -> StoreError:
    what = f"this store ignores the conditions of a write: it {fault}; two attempts of a run would overwrite each other"
    fix = "keep run folders on a disk, on NFS, or in a store with conditional writes (S3, GCS, Azure Blob, MinIO, R2)"
    return StoreError(what, where=store.url, fix=fix)


_SCHEME_ALIASES = {
    "abfs": "az",
    "abfss": "az",
    "adl": "az",
    "azure": "az",
    "gcs": "gs",
    "mem": "memory",
    "s3a": "s3",
    "s3n": "s3",
    "wasb": "az",
    "wasbs": "az",
}


_WEB_SCHEMES = ("http", "https")


def suggest_url(text: str) -> str | None:
    """Return the intended URL if the slashes after a known scheme are missing.

    A folder of such a name can be written as `./gs:/bucket`.

    Args:
        text: What the user typed.

    Returns:
        The URL, or None if `text` is not such a mistake.

    Example:
        >>> from headway.storage import suggest_url
        >>> suggest_url("gs:/bucket/runs")
        'gs://bucket/runs'
    """
    scheme, separator, rest = text.partition(":")
    scheme = scheme.lower()
    if not separator or rest.startswith("//") or not scheme:
        return None
    if scheme not in (*STORES.built_in, *_SCHEME_ALIASES, *_WEB_SCHEMES):
        return None
    root = "file:///" if scheme == "file" else f"{_SCHEME_ALIASES.get(scheme, scheme)}://"
    return root + (rest.lstrip("/") or ("path" if scheme == "file" else "bucket"))


def require_url(text: str) -> None:
    """Reject a URL whose slashes are missing: it would silently name a local folder.

    Args:
        text: What the user typed.

    Raises:
        BadInput: With the intended URL.

    Example:
        >>> from headway.storage import require_url
        >>> require_url("runs")
        >>> require_url("gs://bucket/runs")
    """
    intended_url = suggest_url(text)
    if intended_url is not None:
        raise BadInput(f"{text} is neither a URL nor a folder", fix=f"write {intended_url}, or ./{text} for a folder")


def open_store(url: str, *, endpoint: str | None = None, retry: RetryPolicy | None = None) -> Store:
    """Open the store at a path or URL: a folder, gs://, s3://, az://, memory://, or a scheme that a plug-in adds.

    Makes no request until it is first used.

    Args:
        url: The store's location.
        endpoint: Another address of the cloud's service; so are the clouds' own variables AWS_ENDPOINT_URL,
            STORAGE_EMULATOR_HOST and AZURE_STORAGE_ENDPOINT.
        retry: How long to retry before raising Transient.

    Returns:
        The store.

    Raises:
        BadInput: If it is not the URL of a known kind of store, or the plug-in for it is broken.

    Example:
        >>> from headway.storage import open_store
        >>> store = open_store("runs/night")
        >>> _ = store.write("files/note.txt", b"hello")
        >>> store.stat("files/note.txt").size
        5
    """
    scheme, _ = _split(url)
    opener: Callable[..., Store] = STORES[scheme].load()
    return opener(url, endpoint=endpoint, retry=retry)


def join(url: str, *parts: str) -> str:
    """Join a URL and names.

    Args:
        url: The URL or path.
        *parts: Names below it; a part may hold slashes.

    Returns:
        The joined URL.

    Raises:
        BadInput: If a part holds `..`.

    Example:
        >>> from headway.storage import join
        >>> join("gs://bucket/runs", "captions-1", "export")
        'gs://bucket/runs/captions-1/export'
    """
    names = [name for part in parts for name in part.split("/") if name not in ("", ".")]
    if ".." in names:
        raise BadInput(f"{'/'.join(parts)} is outside {url}", fix="give a path below it")
    base = url if url.endswith("://") else url.rstrip("/") + "/" if names else url.rstrip("/") or "/"
    return base + "/".join(names)


def local_path(url: str) -> Path | None:
    """Return the absolute path of a location on this machine.

    Args:
        url: A path or URL.

    Returns:
        The path if it is a path or file://; None for memory:// and object stores.

    Raises:
        BadInput: If it is not the URL of a known kind of store, or a file:// URL of another machine.

    Example:
        >>> from headway.storage import local_path
        >>> local_path("file:///data/runs").as_posix()
        '/data/runs'
        >>> local_path("s3://bucket/runs") is None
        True
    """
    scheme, rest = _split(url)
    if scheme == "":
        return Path(os.path.abspath(os.path.expanduser(rest)))
    if scheme != "file":
        return None
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise BadInput(f"{url} names another machine", fix="write file:///path with three slashes, or just /path")
    return Path(os.path.abspath("/" + unquote(path)))


def make_private(url: str) -> None:
    """Create the folder of a location on this machine so that only this user may open it; nothing for a bucket."""
    path = local_path(url)
    if path is not None:
        from headway.storage.local import make_private_folder

        make_private_folder(path)


def is_same_folder(one: str, other: str) -> bool:
    """Return whether two URLs name one folder, even if one of them is reached through a link or a bind mount.

    Args:
        one: A URL or path.
        other: Another one.

    Returns:
        True if they are the same place.

    Example:
        >>> from headway.storage import is_same_folder
        >>> is_same_folder("runs", "./runs/../runs")
        True
    """
    if one == other or "://" in one or "://" in other or not (one and other):
        return one == other
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them does not exist, or is not accessible
        return False


def _split(url: str) -> tuple[str, str]:
    if not url.strip() or "\0" in url:
        raise BadInput(f"{url!r} is neither a folder nor a store's URL", fix="give a folder, or gs://bucket/path")
    require_url(url)
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "", url
    scheme = scheme.lower()
    if scheme not in STORES:
        known = _SCHEME_ALIASES.get(scheme)
        fix = f"write {known}://" if known else STORES.hints.get(scheme, _schemes())
        raise BadInput(f"{url}: {scheme}:// is not a kind of store that Headway supports", fix=fix)
    return scheme, rest


def open_folder(url: str, *, endpoint: str | None = None, retry: RetryPolicy | None = None) -> Store:
    """Open the store at a URL of this kind: `open_store` chooses by the scheme."""
    from headway.storage.local import FolderStore

    path = local_path(url)
    assert path is not None
    return FolderStore(path)


def open_memory(url: str, *, endpoint: str | None = None, retry: RetryPolicy | None = None) -> Store:
    """Open the store at a URL of this kind: `open_store` chooses by the scheme."""
    from headway.storage.memory import MemoryStore

    return MemoryStore(url)


def open_google(url: str, *, endpoint: str | None = None, retry: RetryPolicy | None = None) -> Store:
    """Open the store at a URL of this kind: `open_store` chooses by the scheme."""
    from headway.storage.gcs import GoogleCloud
    from headway.storage.object_store import ObjectStore

    return ObjectStore(GoogleCloud.from_url(url, endpoint), retry)


def open_amazon(url: str, *, endpoint: str | None = None, retry: RetryPolicy | None = None) -> Store:
    """Open the store at a URL of this kind: `open_store` chooses by the scheme."""
    from headway.storage.object_store import ObjectStore
    from headway.storage.s3 import AmazonCloud

    return ObjectStore(AmazonCloud.from_url(url, endpoint), retry)


def open_azure(url: str, *, endpoint: str | None = None, retry: RetryPolicy | None = None) -> Store:
    """Open the store at a URL of this kind: `open_store` chooses by the scheme."""
    from headway.storage.azure import AzureCloud
    from headway.storage.object_store import ObjectStore

    return ObjectStore(AzureCloud.from_url(url, endpoint), retry)


def _schemes() -> str:
    added = "".join(f" or {scheme}://" for scheme in STORES if scheme not in STORES.built_in)
    return f"use a folder, gs://, s3://, az:// or memory://{added}"


__all__ = [
    "ABSENT",
    "ObjectInfo",
    "Store",
    "fetch_file",
    "is_same_folder",
    "join",
    "local_path",
    "open_store",
    "require_conditional_put",
    "require_url",
    "send_file",
    "subfolders",
    "suggest_url",
]
