"""Load initial weights from another run, a bundle, a safetensors file or a `.pth` file. All of them must fit.

The only module that opens torch's pickle format, and only as plain tensors (`weights_only`).
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import PurePosixPath
from typing import Any

import torch
from torch import Tensor, nn

from headway.core.errors import BadInput, NoCheckpoint, NotThere
from headway.rundir.layout import PLAN
from headway.spec.model import Checkpoint
from headway.storage import open_store
from headway.storage.base import Store
from headway.training.checkpoint.index import CheckpointIndex
from headway.training.checkpoint.reader import CheckpointReader
from headway.training.checkpoint.serialization import CheckpointDamaged
from headway.training.checkpoint.staging import parse_safetensors

_SHOWN = 8  # mismatches listed before "and n more"
TORCH_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt")


def initialise(model: nn.Module, url: str) -> None:
    """Load the weights at `url` into the model. Raises BadInput listing every name and shape that does not match."""
    weights = weights_at(url)
    problems = mismatches(model, weights)
    if problems:
        shown = problems[:_SHOWN] + ([f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else [])
        raise BadInput("these weights do not fit the model: " + "; ".join(shown), where=url)
    model.load_state_dict(dict(weights))


def weights_at(url: str) -> dict[str, Tensor]:
    path = PurePosixPath(url)
    try:
        if path.suffix in TORCH_SUFFIXES:
            return load_torch_file(_read_file(url), url)
        if path.suffix == ".safetensors":
            return parse_safetensors(bytearray(_read_file(url)))
        return _weights_in_folder(open_store(url), url)
    except CheckpointDamaged as damage:
        raise NoCheckpoint(f"the weights to start from are damaged: {damage}", where=url) from None
    except NotThere as error:
        raise BadInput(f"there are no weights to start from: {error.problem.what}", where=url) from None


def read_torch_file(body: bytes, where: str) -> Any:
    """Read what torch.save wrote: tensors and plain containers, never code."""
    try:
        return torch.load(BytesIO(body), map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - a damaged or malicious pickle can raise anything
        first = str(error).strip().partition("\n")[0]
        raise BadInput(
            f"not a file of plain weights: {first}",
            where=where,
            fix="save it again with torch.save(model.state_dict(), path)",
        ) from None


def load_torch_file(body: bytes, where: str) -> dict[str, Tensor]:
    """Read a state dict written by torch.save: tensors and plain containers, never code."""
    found = read_torch_file(body, where)
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise BadInput("the file does not contain a state dict", where=where, fix="save only model.state_dict()")
    return {str(name).removeprefix("module."): value for name, value in found.items()}


def mismatches(model: nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    mine = model.state_dict()
    problems = [f"{name} is missing" for name in mine if name not in weights]
    problems += [f"{name} is not in the model" for name in weights if name not in mine]
    for name in mine.keys() & weights.keys():
        ours, theirs = tuple(mine[name].shape), tuple(weights[name].shape)
        if ours != theirs:
            problems.append(f"{name} has shape {theirs}, the model {ours}")
    return sorted(problems)


def _read_file(url: str) -> bytes:
    folder, _, name = url.rpartition("/")
    return open_store(folder or ".").read(name)


def _weights_in_folder(store: Store, url: str) -> dict[str, Tensor]:
    try:
        store.stat(PLAN)
    except NotThere:
        from headway.bundle.format import WEIGHTS, Bundle

        return parse_safetensors(bytearray((Bundle.open(url).folder / WEIGHTS).read_bytes()))
    reader = CheckpointReader(store)
    index = CheckpointIndex(store, Checkpoint())
    index.add_existing(reader.list_commits())
    best = index.newest_best
    loaded = reader.load_newest([]) if best is None else reader.load(best)
    if loaded is None or "model" not in loaded.state:
        raise BadInput("this run has no checkpoint that contains a model", where=url)
    found: dict[str, Tensor] = loaded.state["model"]
    return found
