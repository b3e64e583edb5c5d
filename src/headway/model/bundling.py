"""A project's model as a bundle: the files that `load` reads, the code of its class, and a record of both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway._version import __version__
from headway.bundle.format import CARD, RECORD, BundleFile, Record, checked_name, to_json
from headway.core.errors import BadInput
from headway.core.globs import matches_any
from headway.model.code import CODE, code_hash, find_code
from headway.model.contract import Model
from headway.model.types import described

NO_MODEL_FILES = ("wandb/", "mlruns/", "lightning_logs/", "runs/", "events.out.tfevents.*", "*.log", "__pycache__/")


def model_record(reference: str, cls: type[Model], code: Mapping[str, bytes]) -> dict[str, Any]:
    """Return what bundle.json says about the class: the types of its inputs and outputs, and a hash of its code."""
    return {
        "class": reference,
        "code": code_hash(code) if code else "",
        "inputs": [described(name, each) for name, each in cls.inputs.items()],
        "outputs": [described(name, each) for name, each in cls.outputs.items()],
    }


def is_needed(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether `load` may read a file of the run. Without patterns: all files but logs and tracker files."""
    return matches_any(name, patterns) if patterns else not matches_any(name, NO_MODEL_FILES)


def complete_bundle(
    folder: Path, *, reference: str, cls: type[Model], root: Path, name: str, metrics: Mapping[str, float]
) -> None:
    """Add the class's code, a model card and bundle.json to a folder with the files that `load` reads."""
    code = find_code(reference, root)
    for carried, body in code.items():
        (folder / CODE / carried).parent.mkdir(parents=True, exist_ok=True)
        (folder / CODE / carried).write_bytes(body)
    record = model_record(reference, cls, code)
    if not (folder / CARD).exists():
        (folder / CARD).write_text(_card(name, record, metrics, code))
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        inside = path.relative_to(folder).as_posix()
        if inside != RECORD:
            files[_checked(inside)] = BundleFile.of(path)
    made = Record(recipe="", name=name, headway=__version__, metrics=metrics, files=files, model=record)
    (folder / RECORD).write_bytes(to_json(made.as_json()))


def _checked(name: str) -> str:
    try:
        return checked_name(name)
    except ValueError:
        raise BadInput(
            f"{name!r} cannot be a file of a bundle",
            fix="rename it, or choose the files that load needs: files = ('models/*',) in the model class",
        ) from None


def _card(name: str, record: Mapping[str, Any], metrics: Mapping[str, float], code: Mapping[str, bytes]) -> str:
    rows = [f"| {metric} | {value:.4f} |" for metric, value in sorted(metrics.items())]
    types = [
        f"- {kind}: `{each['name']}`, {each['kind']}" + (f", {each['about']}" if each.get("about") else "")
        for kind in ("inputs", "outputs")
        for each in record[kind]
    ]
    carried = f"`{CODE}/` holds its code, {len(code)} files." if code else "Its code is an installed package."
    parts = [
        f"# {name}",
        f"A model of the class `{record['class']}`. {carried} Headway runs it only with `--trust`.",
        "\n".join(types),
        "\n".join(["| on validation | |", "| --- | --- |", *rows]) if rows else "",
        "## Use",
        "    headway predict PATH_OF_THIS_FOLDER INPUT --trust",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
