"""Upload the files of this machine that a project names under `data`, beside its runs, once per content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headway.core.errors import BadInput, NotThere
from headway.core.plan import UPLOADED, Plan, uploaded_data_url
from headway.storage import Store, open_store
from headway.storage.transfer import send_file

MAX_BYTES: Final = 5_000_000_000  # more belongs in a bucket, where it stays between runs


def upload_fingerprint(name: str, source: str) -> str:
    """Return the fingerprint that a plan records for a path of this machine, from the content of its files.

    Raises:
        BadInput: If there is no such path, or more than 5 GB below it.
    """
    path = Path(source)
    if not path.exists():
        raise BadInput(f"data.{name}: there is no {source}", fix="fix the path in the job file")
    files = list(_files(path))
    total = sum(file.stat().st_size for file, _ in files)
    if total > MAX_BYTES:
        raise BadInput(
            f"data.{name} has {total / 1e9:.1f} GB, and files of this machine are sent up to {MAX_BYTES / 1e9:.0f} GB",
            where=source,
            fix="copy it to a bucket that the target can read, and write its URL in the job file",
        )
    digest = hashlib.sha256()
    for file, key in files:
        digest.update(f"{key}\0{_sha256(file)}\n".encode())
    return UPLOADED + digest.hexdigest()


def send_data(plan: Plan) -> None:
    """Upload what a plan refers to by `upload_fingerprint` and the outputs do not have yet."""
    outputs = str(plan.job["outputs"])
    for source in dict.fromkeys(map(str, (plan.job.get("named_data") or {}).values())):
        url = uploaded_data_url(plan, source, outputs)
        if not url:
            continue
        store = open_store(url.rpartition("/")[0])
        for file, key in _files(Path(source)):
            if not _is_stored(store, key, file.stat().st_size):
                send_file(store, key, file)


def _files(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield every file below a path with its key, which begins with the path's own name."""
    if path.is_file():
        yield path, path.name
        return
    for folder, names, files in os.walk(path):
        names.sort()
        for name in sorted(files):
            file = Path(folder, name)
            yield file, file.relative_to(path.parent).as_posix()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(8 << 20):
            digest.update(part)
    return digest.hexdigest()


def _is_stored(store: Store, key: str, size: int) -> bool:
    try:
        return store.stat(key).size == size
    except NotThere:
        return False
