"""The weights in a checkpoint of any script, and state dicts as safetensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def weights_of(state: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Find the models in a checkpoint of any script: the state dicts by name, without optimizers and random states.

    Averaged weights (`run.average`, under `average_1`) replace those of the model that has them all.
    """
    models = dict(_state_dicts(state, ""))
    for key, average in state.items():
        averaged = average.get("weights", {}) if key.startswith("average_") and isinstance(average, Mapping) else {}
        owner = next((each for each in models.values() if averaged and averaged.keys() <= each.keys()), None)
        if owner is not None:
            owner |= averaged
    return models


_NO_MODEL = ("run", "optimizer", "optim", "scaler", "rng", "random", "average_")  # keys of a checkpoint


def _state_dicts(state: Mapping[str, Any], name: str) -> Iterator[tuple[str, dict[str, Tensor]]]:
    tensors = {str(key): value for key, value in state.items() if isinstance(value, Tensor)}
    if tensors and all(isinstance(value, Tensor) or str(key).endswith("_extra_state") for key, value in state.items()):
        yield name or "model", tensors
    elif "param_groups" not in state:
        for key, value in state.items():
            if isinstance(value, Mapping) and not str(key).startswith(_NO_MODEL):
                yield from _state_dicts(value, f"{name}.{key}" if name else str(key))


def plain_tensors(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().clone(memory_format=torch.contiguous_format)
    if isinstance(value, Mapping):
        return {str(name): plain_tensors(each) for name, each in value.items()}
    return value


def as_safetensors(models: Mapping[str, Mapping[str, Tensor]]) -> bytes:
    """Serialize one or several state dicts; the names of several are put in front of their tensors'."""
    from safetensors.torch import save

    several = len(models) > 1
    return save(
        {
            f"{model}.{name}" if several else name: plain_tensors(tensor)
            for model, tensors in models.items()
            for name, tensor in tensors.items()
        }
    )
