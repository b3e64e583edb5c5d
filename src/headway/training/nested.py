"""Apply a function to every tensor of a nested batch or model output, without changing its classes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from torch import Tensor


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of a nested value with every tensor replaced by `function(tensor)`.

    Mappings (also those of Hugging Face, such as BatchEncoding and ModelOutput), dataclasses, named tuples, lists and
    tuples keep their class. Other objects are returned as they are.
    """
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return _map_mapping(value, function)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(each, function) for each in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(each, function) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for one in dataclasses.fields(value):
            object.__setattr__(made, one.name, map_tensors(getattr(value, one.name), function))
        return made
    return value


def _map_mapping(value: Mapping[Any, Any], function: Callable[[Tensor], Tensor]) -> Any:
    items = {name: map_tensors(each, function) for name, each in value.items()}
    if type(value) is dict or not isinstance(value, MutableMapping):
        return items
    made = copy.copy(value)
    for name, each in items.items():
        made[name] = each
    return made
