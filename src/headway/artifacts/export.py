"""Export a run's or a bundle's model: as a bundle, or as `.pth`, ONNX or torch.export files for other programs."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.artifacts.checkpoint_model import open_trained
from headway.artifacts.own_model import Choice, open_own
from headway.artifacts.weights import write_files
from headway.bundle.format import RECORD, Bundle, to_json
from headway.bundle.publish import publish
from headway.core.errors import NotThere
from headway.storage import join, open_store


def export_run(
    run_url: str, *, to: str | None = None, checkpoint: str | None = None, choice: Choice | None = None
) -> str:
    """Find or make the run's bundle, publish it at `to` if given, and return its URL.

    Without `checkpoint`, uses the bundle that the run exported or, if there is none, makes one of its best checkpoint.
    """
    inside = join(run_url, "export")
    choice = choice or Choice()
    if checkpoint is None and choice.model is None and _has_bundle(inside):
        if to is None:
            return inside
        with tempfile.TemporaryDirectory(prefix="headway-export-") as name:
            return publish(_unpack_bundle(Bundle.open(inside), Path(name)), to)
    from headway.artifacts.models import is_own

    if is_own(run_url, choice):
        return open_own(run_url, choice, checkpoint or "best").export(to or inside)
    with tempfile.TemporaryDirectory(prefix="headway-export-") as name:
        open_trained(run_url, checkpoint or "best").bundle().write(Path(name))
        return publish(Path(name), to or inside)


def _has_bundle(url: str) -> bool:
    try:
        open_store(url).stat(RECORD)
    except NotThere:
        return False
    return True


def _unpack_bundle(bundle: Bundle, folder: Path) -> Path:
    """Copy a verified bundle's files under their original names, and write a bundle.json that matches."""
    for name in bundle.record.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle.folder / name, folder / name)
    files = {name: replace(entry, at=None) for name, entry in bundle.record.files.items()}
    (folder / RECORD).write_bytes(to_json(replace(bundle.record, files=files, replaces=()).as_json()))
    return folder


# Files for other programs


def write_graphs(
    ref: str, kind: str, to: str, *, checkpoint: str = "best", choice: Choice | None = None
) -> dict[str, Any]:
    """Write the model as `onnx` or `pt2` files, checked against it, with a JSON record of their inputs and outputs."""
    from headway.artifacts.models import open_checkpoint
    from headway.artifacts.onnx import WRITERS

    model = open_checkpoint(ref, choice or Choice(), checkpoint)
    with tempfile.TemporaryDirectory(prefix="headway-graphs-") as folder:
        made = [WRITERS[kind](graph, Path(folder)) for graph in model.graphs()]
        record = {"name": model.name, "recipe": model.kind, "format": kind, "graphs": made}
        bodies = [(path.name, path.read_bytes()) for path in sorted(Path(folder).iterdir())]
        write_files(iter([*bodies, *model.companions().items(), (f"{model.name}_{kind}.json", to_json(record))]), to)
    return {**record, "to": to}
