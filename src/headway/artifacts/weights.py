"""`export --as pth|safetensors` and `pull --as pth`: the weights of any run that saved some, for other programs.

They come from a bundle, from the checkpoints of `headway.start`, or from files that an unchanged program saved.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

import torch
from torch import Tensor

from headway.artifacts.checkpoint_model import BEST, CheckpointModel, named_step, open_trained
from headway.bundle.format import CARD, CONFIG, WEIGHTS, Bundle, to_json
from headway.core.errors import BadInput
from headway.model.code import CODE
from headway.rundir.history import scores_at
from headway.rundir.layout import BUNDLE, RunFolder
from headway.spec import undump
from headway.storage import fetch_file, local_path, open_store
from headway.storage.base import ObjectInfo, Store
from headway.training.checkpoint.init_weights import TORCH_SUFFIXES, read_torch_file
from headway.training.checkpoint.reader import CheckpointReader
from headway.training.checkpoint.weights import as_safetensors, plain_tensors, weights_of

PTH, SAFETENSORS = "pth", "safetensors"
FORMS: Final = (PTH, SAFETENSORS)
_EPOCH: Final = "epoch_"
_KEPT: Final = ("files/workdir/", "files/", "export/")  # where a run folder holds what a program saved itself
_NOT_KEPT: Final = ("files/earlier/", "files/workdir/earlier/", "files/other-nodes/")

Body = bytes | Path


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: the names of the files, and why some weights were not."""

    files: list[str]
    notes: list[str] = field(default_factory=list)


def write_weights(ref: str, form: str, to: str, *, checkpoint: str | None = None) -> Written:
    """Write the weights of a run or a bundle to a folder or an object store.

    A recipe's run gives every named checkpoint (`phase1_best.pth`, `checkpoint_epoch_5.pth`), the best weights alone
    with their settings, and the files they need; a script's run its checkpoints; any other run the files it saved.
    With `checkpoint`, only that one.
    """
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="headway-weights-") as folder:
        names = write_files(_files(ref, form, checkpoint, Path(folder), notes), to)
    if not names:
        raise _nothing_saved(ref, form, notes)
    return Written(names, notes)


def as_pth(state: Mapping[str, Any]) -> bytes:
    """Serialize for `torch.load(path, weights_only=True)`. The same values give the same bytes, with any strides."""
    body = io.BytesIO()
    torch.save(plain_tensors(state), body)
    return body.getvalue()


def _files(ref: str, form: str, checkpoint: str | None, folder: Path, notes: list[str]) -> Iterator[tuple[str, Body]]:
    from headway.artifacts.evaluate import is_bundle

    if is_bundle(ref):
        return _of_bundle(Bundle.open(ref), form)
    store = open_store(ref)
    if undump(RunFolder(store).plan().job, where=ref).recipe is not None:
        return _of_recipe(ref, form, checkpoint)
    if CheckpointReader(store).list_commits():
        return _of_checkpoints(store, form, checkpoint)
    if checkpoint is not None:
        raise BadInput(
            f"this run has no checkpoint {checkpoint!r}: its program saves files",
            where=ref,
            fix="leave out --checkpoint",
        )
    return _of_kept_files(store, form, folder, notes)


def _of_bundle(bundle: Bundle, form: str) -> Iterator[tuple[str, Body]]:
    if WEIGHTS in bundle.record.files:
        yield _alone(bundle.name, form), _weights_body({"model": bundle.weights()}, form)
    settings = f"{bundle.name}_config.json"
    found = next((name for name in (settings, CONFIG) if name in bundle.record.files), None)
    if found:
        yield settings, bundle.read(found)
    for name in bundle.record.files:
        if name not in (WEIGHTS, CONFIG, CARD, settings, _alone(bundle.name, PTH)) and not name.startswith(f"{CODE}/"):
            yield name, bundle.folder / name


# A recipe's checkpoints


def _of_recipe(run_url: str, form: str, checkpoint: str | None) -> Iterator[tuple[str, Body]]:
    names = [(checkpoint, None)] if checkpoint else _named(CheckpointReader(open_store(run_url)))
    for name, epoch in names:
        trained = open_trained(run_url, name)
        weights = {"model": _tensors(trained.model.state_dict())}
        yield _checkpoint_name(name, form), _checkpoint_body(weights, trained.step, epoch, trained.scores, form)
    yield from _alone_with_settings(open_trained(run_url, checkpoint or BEST), form)


def _alone_with_settings(trained: CheckpointModel, form: str) -> Iterator[tuple[str, Body]]:
    parts, weights = trained.bundle(), _tensors(trained.model.state_dict())
    yield _alone(parts.name, form), _weights_body({"model": weights}, form)
    settings = f"{parts.name}_config.json"
    yield settings, parts.files.get(settings) or to_json(dict(parts.config))
    for name, body in parts.files.items():
        if name not in (settings, _alone(parts.name, PTH)):
            yield name, body  # a vocabulary, a tokenizer: the weights cannot be used without them


# A script's checkpoints


def _of_checkpoints(store: Store, form: str, checkpoint: str | None) -> Iterator[tuple[str, Body]]:
    reader, folder = CheckpointReader(store), RunFolder(store)
    epochs = {entry.step: entry.epoch for entry in reader.list_commits()}
    job = undump(folder.plan().job, where=store.url)
    name = job.export.name or job.name
    names = [checkpoint] if checkpoint else [found for found, _ in _named(reader)]
    for wanted in names:
        step, _ = named_step(store, wanted)
        models = weights_of(reader.load(step).state)
        yield (
            _checkpoint_name(wanted, form),
            _checkpoint_body(models, step, epochs.get(step), scores_at(folder, step), form),
        )
    step, _ = named_step(store, checkpoint or BEST)
    yield _alone(name, form), _weights_body(weights_of(reader.load(step).state), form)
    yield f"{name}_config.json", to_json(dict(job.config))


def _named(reader: CheckpointReader) -> list[tuple[str, int | None]]:
    """List the named checkpoints with their epochs."""
    return [(name, entry.epoch) for entry in reader.list_commits() for name in entry.names]


def _checkpoint_name(checkpoint: str, form: str) -> str:
    return f"checkpoint_{checkpoint}.{form}" if checkpoint.startswith(_EPOCH) else f"{checkpoint}.{form}"


def _alone(name: str, form: str) -> str:
    return f"{name}_state_dict.pth" if form == PTH else f"{name}.safetensors"


def _checkpoint_body(
    models: Mapping[str, Mapping[str, Tensor]], step: int, epoch: int | None, scores: Mapping[str, float], form: str
) -> bytes:
    if form == SAFETENSORS:
        return as_safetensors(models)
    keys = (
        {"model_state_dict": models[next(iter(models))]}
        if len(models) == 1
        else {f"{name}_state_dict": each for name, each in models.items()}
    )
    return as_pth({**keys, "step": step, "epoch": epoch, "scores": dict(scores)})


def _weights_body(models: Mapping[str, Mapping[str, Tensor]], form: str) -> bytes:
    if form == SAFETENSORS:
        return as_safetensors(models)
    return as_pth(next(iter(models.values())) if len(models) == 1 else models)


def _tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


# Files that a program saved


def _of_kept_files(store: Store, form: str, folder: Path, notes: list[str]) -> Iterator[tuple[str, Body]]:
    for name, entry in kept_files(store).items():
        suffix = PurePosixPath(name).suffix
        if suffix not in (*TORCH_SUFFIXES, ".safetensors") or name.endswith("training_args.bin"):
            continue
        path = folder / name
        fetch_file(store, entry.key, path)
        if (suffix == ".safetensors") == (form == SAFETENSORS):
            yield name, path
            continue
        try:
            models = _models_in(path, suffix, f"{store.url}/{entry.key}")
        except BadInput as error:
            notes.append(f"{name} is left out: {error.problem.what}")
            continue
        yield str(PurePosixPath(name).with_suffix(f".{form}")), _weights_body(models, form)


def kept_files(store: Store) -> dict[str, ObjectInfo]:
    """List the files that a run's program saved itself, by their paths in its folder."""
    found: dict[str, ObjectInfo] = {}
    for prefix in _KEPT:
        entries = list(store.list(prefix))
        if any(entry.key == BUNDLE for entry in entries):
            continue  # made by Headway
        for entry in entries:
            if not entry.key.startswith(_NOT_KEPT) and not (prefix == "files/" and entry.key.startswith(_KEPT[0])):
                found.setdefault(entry.key.removeprefix(prefix), entry)
    return dict(sorted(found.items()))


def _models_in(path: Path, suffix: str, where: str) -> dict[str, dict[str, Tensor]]:
    if suffix == ".safetensors":
        from safetensors.torch import load_file

        return {"model": load_file(path)}
    found = read_torch_file(path.read_bytes(), where)
    models = weights_of(found if isinstance(found, Mapping) else {})
    if not models:
        raise BadInput("it contains no state dict", where=where)
    return models


def _nothing_saved(ref: str, form: str, notes: list[str]) -> BadInput:
    if notes:
        return BadInput(
            f"no weights can be written as {form}: {'; '.join(notes)}",
            where=ref,
            fix="headway pull RUN copies the files as they are",
        )
    others = list(kept_files(open_store(ref)))
    if others:
        shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        return BadInput(
            f"this run saved no weights of torch; it saved {shown}", where=ref, fix="headway pull RUN --only files"
        )
    return BadInput(
        "this run saved no weights",
        where=ref,
        fix="save them in the program: run.restore(model=…) with headway.start, or torch.save",
    )


def write_files(files: Iterator[tuple[str, Body]], to: str) -> list[str]:
    """Write files to a folder or an object store. Replaces files of the same names and no others."""
    folder = local_path(to)
    if folder is not None and folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file", fix="choose a folder")
    store: Store | None = None
    names = []
    for name, body in files:
        store = store or open_store(to)
        store.write(name, body)
        names.append(name)
    return names


__all__ = ["FORMS", "Written", "as_pth", "kept_files", "write_files", "write_weights"]
