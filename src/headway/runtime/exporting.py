"""Putting a bundle into the run folder, and publishing it: `bundle.json` last, so that half of one is none."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from headway.runtime.session import Session
from headway.storage.base import Store

LAST = "bundle.json"


class Bundle(Protocol):
    """Something that can write itself into an empty folder."""

    def write(self, folder: Path) -> None: ...


def export(bundle: Bundle, session: Session, say: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="headway-export-") as name:
        folder = Path(name)
        bundle.write(folder)
        upload(folder, session.store)
        session.event("export", url=f"{session.store.url}/export")
        say(f"exported to {session.store.url}/export")
        to = session.identity.job.export.to
        if to:
            from headway.export import publish

            publish(folder, to)
            say(f"published to {to}")


def upload(folder: Path, store: Store) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in sorted(files, key=lambda path: path.name == LAST):
        store.write(f"export/{path.relative_to(folder).as_posix()}", path)
