"""A place for what a preparation needs while it runs, and the lock that keeps a second one away."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from headway.errors import BadInput, DiskFull, StoreError
from headway.home import home
from headway.storage import local_path

FOLDER = ".work"
_MATTER = ("pyarrow", "simplejpeg", "pyvips-binary", "pyvips", "pillow", "tokenizers")


@contextmanager
def scratch_for(to: str) -> Iterator[Path]:
    """A folder beside the shards, or under Headway's home where they go to an object store.

    It is removed on success, and kept after a failure: what was unpacked or fetched need not be again.
    """
    dest = local_path(to)
    path = dest / FOLDER if dest is not None else home() / "prepare" / hashlib.sha256(to.encode()).hexdigest()[:16]
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / "lock").open("w")
    except OSError as error:
        kind = DiskFull if error.errno == 28 else StoreError
        raise kind(f"cannot write to {path}: {error.strerror}", where=to, fix="choose another place") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            what = f"another preparation is writing to {to}"
            raise BadInput(what, fix="wait for it, or choose another place") from None
        yield path
    shutil.rmtree(path, ignore_errors=True)


@cache
def made_with() -> Mapping[str, str]:
    """The versions that could change a byte of a shard. Looked up once: it takes 14 ms."""
    found: dict[str, str] = {}
    for name in _MATTER:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
