"""Export a run's or a bundle's model: as a bundle, or as `.pth`, ONNX or torch.export files for other programs."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.artifacts.checkpoint_model import CheckpointModel, open_trained
from headway.artifacts.weights import write_files
from headway.bundle.format import RECORD, Bundle, to_json
from headway.bundle.publish import publish
from headway.core.errors import BadInput, NotThere
from headway.plugins import RECIPES, Recipe
from headway.storage import join, open_store


def export_run(run_url: str, *, to: str | None = None, checkpoint: str | None = None) -> str:
    """Find or make the run's bundle, publish it at `to` if given, and return its URL.

    Without `checkpoint`, uses the bundle that the run exported or, if there is none, makes one of its best checkpoint.
    """
    inside = join(run_url, "export")
    if checkpoint is None and _has_bundle(inside):
        if to is None:
            return inside
        with tempfile.TemporaryDirectory(prefix="headway-export-") as name:
            return publish(_unpack_bundle(Bundle.open(inside), Path(name)), to)
    from headway.artifacts.checkpoint_model import open_trained

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
        shutil.copyfile(bundle.folder / name, folder / name)
    files = {name: replace(entry, at=None) for name, entry in bundle.record.files.items()}
    (folder / RECORD).write_bytes(to_json(replace(bundle.record, files=files, replaces=()).as_json()))
    return folder


# Files for other programs


def write_graphs(ref: str, kind: str, to: str, *, checkpoint: str = "best") -> dict[str, Any]:
    """Write the model as `onnx` or `pt2` files, checked against it, with a JSON record of their inputs and outputs."""
    from headway.artifacts.onnx import WRITERS

    recipe, name, model, config, files = _open_model(ref, checkpoint)
    if not recipe.graphs:
        raise BadInput(
            f"{recipe.name} cannot be exported as {kind} yet",
            where=ref,
            fix="use the bundle, or --as pth for the weights",
        )
    with tempfile.TemporaryDirectory(prefix="headway-graphs-") as folder:
        made = [WRITERS[kind](graph, Path(folder)) for graph in recipe.load("graphs")(model, config)]
        record = {"name": name, "recipe": recipe.name, "format": kind, "graphs": made}
        bodies = [(path.name, path.read_bytes()) for path in sorted(Path(folder).iterdir())]
        write_files(iter([*bodies, *files.items(), (f"{name}_{kind}.json", to_json(record))]), to)
    return {**record, "to": to}


def _open_model(ref: str, checkpoint: str) -> tuple[Recipe, str, Any, Any, dict[str, bytes]]:
    """Open a run or a bundle; return its recipe, name, model, config and the files to ship with a graph."""
    from headway.artifacts.evaluate import is_bundle

    if is_bundle(ref):
        bundle = Bundle.open(ref)
        if bundle.recipe not in RECIPES:
            raise BadInput(f"this version of Headway has no recipe {bundle.recipe!r}", where=ref)
        from headway.artifacts.predictor import load_from_bundle

        predictor = load_from_bundle(RECIPES[bundle.recipe], "predictor", bundle)
        files = {name: bundle.read(name) for name in bundle.record.files if _is_weight_file(name)}
        return RECIPES[bundle.recipe], bundle.name, predictor.model, predictor.config, files
    trained: CheckpointModel = open_trained(ref, checkpoint)
    parts = trained.bundle()
    files = {name: body for name, body in parts.files.items() if _is_weight_file(name)}
    return trained.recipe, parts.name, trained.model, trained.config, files


def _is_weight_file(name: str) -> bool:
    """Whether a program needs the file beside the graph: vocabularies and settings, but not the weights."""
    return name.endswith(".json") and name not in ("bundle.json", "config.json")
