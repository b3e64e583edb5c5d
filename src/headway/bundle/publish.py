"""Publish a bundle atomically.

A folder is replaced in one step by a complete sibling. In an object store, the new files are written beside the
old ones, under keys that hold their checksums; then a conditional write switches bundle.json over to them, and the
files are copied to their plain names.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headway.bundle.format import RECORD, BundleFile, Record, read_record, to_json
from headway.core.errors import BadBundle, BadInput, Denied, DiskFull, NotThere, StoreError
from headway.storage import ABSENT, local_path, open_store

if TYPE_CHECKING:
    from headway.storage.base import Store

_EXCHANGE: Final = 2  # RENAME_EXCHANGE of renameat2: swap two names atomically
_AT_FDCWD: Final = -100


def publish(folder: Path, url: str) -> str:
    """Publish the bundle in a folder at a URL, atomically: readers see either the old bundle or the new one.

    Args:
        folder: A complete bundle.
        url: A folder or object store: nothing, or a bundle, which is replaced as a whole.

    Returns:
        The URL.

    Raises:
        BadInput: If there is anything other than a bundle at `url`. Nothing was changed.
        BadBundle: If `folder` holds no bundle.
        StoreError: If `url` cannot be written.

    Example:
        >>> import torch
        >>> from pathlib import Path
        >>> from headway.bundle import Bundle, BundleParts
        >>> from headway.bundle.publish import publish
        >>> BundleParts(recipe="line", name="line", config={}, weights={"w": torch.ones(1)}).write(Path("new"))
        >>> publish(Path("new"), "models/line")
        'models/line'
        >>> Bundle.open("models/line").name
        'line'
    """
    Record.read((folder / RECORD).read_bytes(), str(folder))
    target = local_path(url)
    if target is not None:
        _publish_folder(folder, target)
    else:
        _publish_objects(folder, open_store(url))
    return url


# Folders


def _publish_folder(folder: Path, target: Path) -> None:
    target = target.resolve()  # if it is a symbolic link, replace what it points to
    _refuse_strangers(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{target.name}.", dir=target.parent, ignore_cleanup_errors=True
        ) as name:
            new = Path(name) / "new"
            shutil.copytree(folder, new, copy_function=_copy_durably)
            _sync(new)
            _switch(new, target)
            _sync(target.parent)
    except OSError as error:
        raise _translated(error, target) from None


def _refuse_strangers(target: Path) -> None:
    """Raise BadInput unless the target is empty or a bundle whose files are all known: never delete user files."""
    if not target.exists():
        return
    if not target.is_dir():
        raise BadInput(f"{target} is a file", fix="choose a folder that does not exist yet, or that contains a bundle")
    present = {path.relative_to(target).as_posix() for path in target.rglob("*") if not path.is_dir()}
    if not present:
        return
    elsewhere = "choose another folder, or remove these files yourself"
    try:
        record = Record.read((target / RECORD).read_bytes(), str(target))
    except (BadBundle, OSError):
        raise BadInput(f"{target} contains files that are not a bundle; nothing was changed", fix=elsewhere) from None
    strangers = sorted(present - set(record.files) - {RECORD})
    if strangers:
        raise BadInput(
            f"{target} has files that are not part of its bundle ({', '.join(strangers[:3])}); nothing was changed",
            fix=elsewhere,
        )


def _switch(new: Path, target: Path) -> None:
    """Rename `new` to `target`; the previous content is left under the name `new`."""
    try:
        os.rename(new, target)  # nothing there, or an empty folder
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not _exchange(new, target):
            # This file system cannot swap two names: for a moment neither is there.
            old = new.with_name("old")
            os.rename(target, old)
            os.rename(new, target)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names atomically; return False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(other))


def _copy_durably(source: str, target: str) -> None:
    shutil.copyfile(source, target)
    _sync(Path(target))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _translated(error: OSError, target: Path) -> StoreError:
    kinds = {
        errno.ENOSPC: DiskFull,
        errno.EDQUOT: DiskFull,
        errno.EACCES: Denied,
        errno.EPERM: Denied,
        errno.EROFS: Denied,
    }
    kind = kinds.get(error.errno or 0, StoreError)
    return kind(f"the bundle could not be published: {error.strerror or error}", where=str(target))


# Object stores


def _publish_objects(folder: Path, store: Store) -> None:
    version, before = _standing(store)
    record = Record.read((folder / RECORD).read_bytes(), str(folder))
    files = {name: replace(entry, at=f"{entry.sha256}/{name}") for name, entry in record.files.items()}
    keys = {name: entry.at or name for name, entry in files.items()}
    _send(folder, keys, store)
    old = {entry.at or name for name, entry in before.files.items()} if before else set()
    replaces = tuple(sorted(old - set(keys.values())))
    store.write(RECORD, to_json(replace(record, files=files, replaces=replaces).as_json()), when=version)
    _send(folder, keys, store)  # again, in case another publisher has just removed one of them
    _write_plain_copies(folder, files, before, store)
    # Readers may still be fetching the bundle replaced just now; nobody reads the one before that any more.
    for key in set(before.replaces if before else ()) - set(keys.values()) - old:
        store.delete(key)


def _write_plain_copies(folder: Path, files: Mapping[str, BundleFile], before: Record | None, store: Store) -> None:
    """Copy each file to its own name too, for tools that do not read bundle.json: `gsutil cp …/model.safetensors`.

    Headway itself reads the files that bundle.json points to: a publication cut short here leaves old copies.
    """
    for name in files:
        store.write(name, folder / name)
    for name in set(before.files if before else ()) - set(files):
        store.delete(name)


def _standing(store: Store) -> tuple[str, Record | None]:
    """Return the version and the record of the bundle that is published now."""
    try:
        version = store.stat(RECORD).version
        return version, read_record(store, store.url)
    except NotThere:
        pass
    stranger = next((entry.key for entry in store.list("")), None)
    if stranger is not None and not _content_named(stranger):
        raise BadInput(
            f"{store.url} contains files that are not a bundle ({stranger}); nothing was changed",
            fix="choose another location, or remove these files yourself",
        )
    return ABSENT, None


def _content_named(key: str) -> bool:
    """Return whether a key was left by an interrupted publication."""
    head = key.partition("/")[0]
    return len(head) == 64 and set(head) <= set("0123456789abcdef")


def _send(folder: Path, keys: dict[str, str], store: Store) -> None:
    for name, key in keys.items():
        with suppress(NotThere):
            if store.stat(key).size == (folder / name).stat().st_size:
                continue
        store.write(key, folder / name)
