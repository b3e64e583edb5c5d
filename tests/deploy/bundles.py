"""A bundle that needs no torch to be made: deploying looks at its record and copies its files."""

from __future__ import annotations

from pathlib import Path

from headway.bundle.format import RECORD, BundleFile, Record, to_json


def small_bundle(folder: Path, name: str = "My leaves", recipe: str = "classification") -> Path:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_bytes(b"{}")
    files = {path.name: BundleFile.of(path) for path in sorted(folder.iterdir())}
    record = Record(recipe=recipe, name=name, headway="0.1.0", metrics={"accuracy": 0.9}, files=files)
    (folder / RECORD).write_bytes(to_json(record.as_json()))
    return folder
