"""Export a run's bundle: the one it has, or one made from a checkpoint."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from headway.bundle import RECORD, Bundle, to_json
from headway.errors import NotThere
from headway.publishing import publish
from headway.storage import join, open_store


def export_run(run_url: str, *, to: str | None = None, checkpoint: str | None = None) -> str:
    """Make or find the run's bundle, publish it at `to` if given, and return where it is.

    Without a checkpoint's name the bundle that the run exported is used; a run that has none gets that of its best one.
    """
    inside = join(run_url, "export")
    if checkpoint is None and _has_bundle(inside):
        if to is None:
            return inside
        with tempfile.TemporaryDirectory(prefix="headway-export-") as name:
            return publish(_unpacked(Bundle.open(inside), Path(name)), to)
    from headway.recipes.trained import open_trained

    with tempfile.TemporaryDirectory(prefix="headway-export-") as name:
        open_trained(run_url, checkpoint or "best").bundle().write(Path(name))
        return publish(Path(name), to or inside)


def _has_bundle(url: str) -> bool:
    try:
        open_store(url).stat(RECORD)
    except NotThere:
        return False
    return True


def _unpacked(bundle: Bundle, folder: Path) -> Path:
    """A checked bundle's files under their own names, with a record that says so."""
    for name in bundle.record.files:
        shutil.copyfile(bundle.folder / name, folder / name)
    files = {name: replace(entry, at=None) for name, entry in bundle.record.files.items()}
    (folder / RECORD).write_bytes(to_json(replace(bundle.record, files=files, replaces=()).as_json()))
    return folder
