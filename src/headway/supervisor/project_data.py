"""Bring the files and folders that a project names under `data` to this machine, for `{data.NAME}`.

A path of a machine that sees it is used as it is. A URL is downloaded into the cache once per version of its content.
A path of the client's machine was uploaded beside the runs by the launcher (`packaging.project_data`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from headway.core.errors import BadInput, NotThere
from headway.core.plan import Plan, uploaded_data_url
from headway.core.platform import state_dir
from headway.storage import Store, open_store
from headway.storage.base import ObjectInfo
from headway.storage.transfer import fetch_file

_STORES = ("gs://", "s3://", "az://", "memory://", "file://")


def bring_data(plan: Plan, outputs: str, log: Callable[[str], None]) -> dict[str, str]:
    """Return the path of every named file or folder, downloading what is not here yet.

    Raises:
        BadInput: If something is not where the job says.
        StoreError: If a store refuses or cannot be reached.
    """
    return {name: _bring(plan, outputs, name, str(source), log) for name, source in _named(plan).items()}


def _named(plan: Plan) -> dict[str, str]:
    return dict(plan.job.get("named_data") or {})


def _bring(plan: Plan, outputs: str, name: str, source: str, log: Callable[[str], None]) -> str:
    if source.startswith(("http://", "https://")):
        from headway.data.download.http import download

        log(f"data.{name}: downloading {source}")
        folder = _cache(plan) / hashlib.sha256(source.encode()).hexdigest()[:16]
        return str(download(source, folder))
    if source.startswith(_STORES):
        return _from_store(plan, name, source, log)
    uploaded = uploaded_data_url(plan, source, outputs)
    if uploaded:
        return _from_store(plan, name, uploaded, log)
    if not os.path.exists(source):
        raise BadInput(f"data.{name}: there is no {source} on this machine", fix="fix the path in the job file")
    return source


def _from_store(plan: Plan, name: str, url: str, log: Callable[[str], None]) -> str:
    """Download an object, or every object below a prefix, into a cache folder named by their versions."""
    parent, _, last = url.rstrip("/").rpartition("/")
    store = open_store(parent)
    entries = _entries(store, last)
    if not entries:
        raise BadInput(f"data.{name}: there is nothing at {url}", fix="fix the URL in the job file")
    digest = hashlib.sha256("\n".join(f"{each.key} {each.size} {each.version}" for each in entries).encode())
    folder = _cache(plan) / digest.hexdigest()[:16]
    missing = [each for each in entries if not _is_there(folder / each.key, each)]
    if missing:
        total = sum(each.size for each in missing)
        log(f"data.{name}: downloading {len(missing)} files ({total / 1e6:.1f} MB) from {url}")
    for entry in missing:
        path = folder / entry.key
        path.parent.mkdir(parents=True, exist_ok=True)
        fetch_file(store, entry.key, path)
    return str(folder / last)


def _entries(store: Store, last: str) -> list[ObjectInfo]:
    try:
        return [store.stat(last)]
    except NotThere:
        return sorted(store.list(f"{last}/"), key=lambda each: each.key)


def _is_there(path: Path, entry: ObjectInfo) -> bool:
    return path.is_file() and path.stat().st_size == entry.size  # whole: it is renamed when complete


def _cache(plan: Plan) -> Path:
    chosen = (plan.job.get("cache") or {}).get("dir")
    return Path(chosen) if chosen else state_dir() / "cache" / "project-data"
