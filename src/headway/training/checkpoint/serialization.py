"""Serialize state as named tensors plus JSON, and restore it bit for bit. No pickle, no code in files.

JSON holds None, booleans, integers, strings, lists, dictionaries with string keys and finite floats (which JSON's
shortest form preserves exactly). Other values are written as a dictionary with one key that starts with `$`: `$tensor`
and `$array` (a tensor's name), `$tuple`, `$items` (a dictionary with other keys), `$float` (nan, inf), `$bytes`,
`$dtype`. Also the encoding of a checkpoint's small JSON files, with an optional checksum.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.core.errors import BadInput, HeadwayError, json_of
from headway.storage.base import Store


class CheckpointDamaged(HeadwayError):
    """A checkpoint file that is missing or corrupt."""


def flatten(state: Mapping[str, Any]) -> tuple[Any, dict[str, Tensor]]:
    """Split a state into a JSON tree and tensors by path. A tensor that appears twice (tied weights) is stored once."""
    tensors: dict[str, Tensor] = {}
    seen: dict[tuple[Any, ...], str] = {}

    def name_of(tensor: Tensor, path: str) -> str:
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
            raise _unsupported(tensor, path)
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if tensor.numel() == 0 or key not in seen:
            tensors[path] = tensor.detach()
            seen[key] = path
        return seen[key]

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            return {"$tensor": name_of(value, path)}
        if isinstance(value, np.ndarray):
            return {"$array": name_of(torch.from_numpy(np.ascontiguousarray(value)), path)}
        if isinstance(value, Mapping):
            return _walk_mapping(value, path, walk)
        if isinstance(value, tuple):
            return {"$tuple": [walk(item, f"{path}/{n}") for n, item in enumerate(value)]}
        if isinstance(value, list):
            return [walk(item, f"{path}/{n}") for n, item in enumerate(value)]
        return _scalar(value, path)

    tree = {key: walk(value, key) for key, value in state.items()}
    return tree, tensors


def unflatten(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Rebuild the state from the output of `flatten`. Raises CheckpointDamaged for anything else."""
    try:
        return _unflatten(tree, tensors)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointDamaged(f"not a state: {type(error).__name__}: {error}") from None


def _unflatten(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(tree, list):
        return [_unflatten(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    tag = next(iter(tree)) if len(tree) == 1 else ""
    if not tag.startswith("$"):
        return {key: _unflatten(value, tensors) for key, value in tree.items()}
    body = tree[tag]
    if tag in ("$tensor", "$array"):
        if body not in tensors:
            raise CheckpointDamaged(f"tensor {body!r} is missing")
        return tensors[body].numpy() if tag == "$array" else tensors[body]
    if tag == "$tuple":
        return tuple(_unflatten(item, tensors) for item in body)
    if tag == "$items":
        return {_unflatten(key, tensors): _unflatten(value, tensors) for key, value in body}
    if tag == "$float":
        return float(body)
    if tag == "$bytes":
        return bytes.fromhex(body)
    if tag == "$dtype":
        dtype = getattr(torch, body)
        if not isinstance(dtype, torch.dtype):
            raise CheckpointDamaged(f"there is no type {body!r}")
        return dtype
    raise CheckpointDamaged(f"unknown mark {tag!r}")


def _walk_mapping(value: Mapping[Any, Any], path: str, walk: Any) -> Any:
    keys = list(value)
    plain = all(isinstance(key, str) for key in keys) and not (len(keys) == 1 and keys[0].startswith("$"))
    if plain:
        return {key: walk(item, f"{path}/{key}") for key, item in value.items()}
    return {"$items": [[walk(key, path), walk(item, f"{path}/{key}")] for key, item in value.items()]}


def _scalar(value: Any, path: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, torch.dtype):
        return {"$dtype": str(value).removeprefix("torch.")}
    raise _unsupported(value, path)


def _unsupported(value: Any, path: str) -> BadInput:
    return BadInput(
        f"the state contains a {type(value).__name__}, which a checkpoint cannot store",
        where=path,
        fix="let state_dict() return tensors, numbers, strings, lists and dictionaries",
    )


# JSON files of a checkpoint: one canonical encoding, validated when read


def encode_record(value: Any) -> bytes:
    return (json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def decode_record(body: bytes, key: str) -> dict[str, Any]:
    try:
        value = json_of(body)
    except ValueError as error:
        raise CheckpointDamaged(f"{key} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointDamaged(f"{key} is damaged: not a record")
    return value


def with_checksum(record: dict[str, Any]) -> bytes:
    """Encode a record with its own checksum, for a file whose checksum no other file holds."""
    return encode_record({**record, "checksum": hashlib.sha256(encode_record(record)).hexdigest()})


def verify_checksum(body: bytes, key: str) -> dict[str, Any]:
    record = decode_record(body, key)
    checksum = record.pop("checksum", None)
    try:
        found = hashlib.sha256(encode_record(record)).hexdigest()
    except (ValueError, RecursionError):  # a lone surrogate, or nested deeper than we ever write: not our file
        found = None
    if checksum is None or checksum != found:
        raise CheckpointDamaged(f"the checksum of {key} differs")
    return record


def read_record(store: Store, key: str) -> dict[str, Any]:
    """Read a JSON record. Raises NotThere if it does not exist, Damaged if it is not valid."""
    return decode_record(store.read(key), key)
