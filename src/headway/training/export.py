"""Export of a bundle into the run folder. `bundle.json` is written last, so that a partial bundle is never visible."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from headway.bundle.format import RECORD
from headway.bundle.publish import publish
from headway.rundir.lease import LeaseLost
from headway.storage import join
from headway.storage.base import Store
from headway.training.checkpoint.writer import lease_is_ours
from headway.training.context import Session


class Bundle(Protocol):
    """Protocol of what `run.finish` and `run.on_export` export, such as a `headway.bundle.format.BundleParts`.

    Example:
        >>> class Weights:
        ...     def write(self, folder):
        ...         (folder / "weights.txt").write_text("0.5")
        >>> run.finish(Weights())
        >>> from headway.storage import open_store
        >>> open_store(run.folder).read("export/weights.txt")
        b'0.5'
    """

    def write(self, folder: Path) -> None:
        """Write the files of the exported model.

        Args:
            folder: An empty folder. With a bundle.json in it, the files are published atomically; else one by one.
        """


def export(bundle: Bundle, session: Session, log: Callable[[str], None]) -> None:
    """Write the bundle to the run folder, and publish it where the job says. Raises LeaseLost if superseded."""
    if not lease_is_ours(session.store, session.rank_info.attempt):
        raise LeaseLost("another attempt has taken over this run", where=session.store.url)
    with tempfile.TemporaryDirectory(prefix="headway-export-") as name:
        folder, began = Path(name), time.monotonic()
        bundle.write(folder)
        url = join(session.store.url, "export")
        if (folder / RECORD).exists():
            publish(folder, url)
        else:
            upload(folder, session.store)
        session.event("export", url=url, seconds=round(time.monotonic() - began, 3))
        log("exported the model to export/ in the run folder" if session.supervised else f"exported to {url}")
        to = session.rank_info.job.export.to
        if to:
            publish(folder, to)
            log(f"published to {to}")


def upload(folder: Path, store: Store) -> None:
    """Upload the files of a script's own bundle, which has no bundle.json, one by one."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        store.write(f"export/{path.relative_to(folder).as_posix()}", path)
