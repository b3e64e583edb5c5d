"""Host staging buffers for checkpoints, laid out as safetensors files: a snapshot costs one memory copy.

Tensors are partitioned over the ranks by size. Each rank's share has a fixed layout, so its safetensors header is
written once, and every snapshot is one pass of copies into views of a preallocated buffer (pinned if there is a GPU).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headway.core.errors import BadInput, json_of
from headway.training.checkpoint.serialization import CheckpointDamaged

ALIGNMENT = 64
_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def partition_tensors(tensors: Mapping[str, Tensor], replicated: Iterable[str], ranks: int) -> list[list[str]]:
    """Assign each tensor to the rank that writes it.

    Tensors in `replicated`, identical on every rank, are balanced over the ranks by size; rank 0 writes the others.
    """
    shares: list[list[str]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    shared = set(replicated) if ranks > 1 else set()
    for name, tensor in tensors.items():
        if name not in shared:
            shares[0].append(name)
            load[0] += tensor.nbytes
    for name in sorted(shared & tensors.keys(), key=lambda name: (-tensors[name].nbytes, name)):
        rank = load.index(min(load))
        shares[rank].append(name)
        load[rank] += tensors[name].nbytes
    return shares


class Layout:
    """The offset of each tensor in the file. States with the same names, dtypes and shapes have the same layout."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        # Widest dtype first: every tensor is aligned to its element size without padding, which the format forbids.
        self.names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
        self.signature = signature(tensors)
        self.spans: dict[str, tuple[int, int]] = {}
        header: dict[str, Any] = {}
        end = 0
        for name in self.names:
            tensor = tensors[name]
            start, end = end, end + tensor.nbytes
            self.spans[name] = (start, end)
            header[name] = {
                "dtype": _dtype_name(tensor, name),
                "shape": list(tensor.shape),
                "data_offsets": [start, end],
            }
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-(len(text) + 8) % ALIGNMENT)
        self.head = len(text).to_bytes(8, "little") + text
        self.size = len(self.head) + end


def signature(tensors: Mapping[str, Tensor]) -> tuple[Any, ...]:
    return tuple((name, tensor.dtype, tensor.shape) for name, tensor in sorted(tensors.items()))


class StagingBuffer:
    """One preallocated staging buffer. `fill` copies a state into it; `bytes` is the content of the file."""

    def __init__(self, layout: Layout, tensors: Mapping[str, Tensor], *, pin: bool = False) -> None:
        self.layout = layout
        # Zeros rather than empty: touch the pages now, not while training waits for the first copy.
        self._buffer = torch.zeros(layout.size, dtype=torch.uint8, pin_memory=pin)
        self._buffer[: len(layout.head)] = torch.frombuffer(bytearray(layout.head), dtype=torch.uint8)
        self._views = [self._view(name, tensors[name]) for name in layout.names]

    def _view(self, name: str, like: Tensor) -> Tensor:
        start, end = (len(self.layout.head) + offset for offset in self.layout.spans[name])
        return self._buffer[start:end].view(like.dtype).view(like.shape)

    @torch.no_grad()
    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the tensors into the buffer. On a GPU the copies are queued after this step and before the next."""
        if self._views:
            torch._foreach_copy_(self._views, [tensors[name] for name in self.layout.names], non_blocking=True)

    @property
    def bytes(self) -> memoryview:
        return memoryview(self._buffer.numpy())  # type: ignore[arg-type]


def parse_safetensors(body: Any) -> dict[str, Tensor]:
    """Parse a safetensors file into tensors that are views of its bytes. Raises CheckpointDamaged if it is invalid."""
    try:
        data = torch.frombuffer(body, dtype=torch.uint8)
        length = int.from_bytes(bytes(data[:8].numpy()), "little")
        if 8 + length > data.numel():
            raise ValueError("its header is cut short")
        header = json_of(bytes(data[8 : 8 + length].numpy()))
        header.pop("__metadata__", None)
        return {name: _read_tensor(data[8 + length :], entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointDamaged(f"not a safetensors file: {error}") from None


def _read_tensor(data: Tensor, entry: Mapping[str, Any]) -> Tensor:
    start, end = entry["data_offsets"]
    dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
    piece = data[start:end]
    if piece.numel() != end - start:
        raise ValueError("it ends too early")
    if piece.storage_offset() % max(1, torch.empty((), dtype=dtype).element_size()):
        piece = piece.clone()  # files written by other programs may be unaligned
    return piece.view(dtype).view(shape)


def _dtype_name(tensor: Tensor, name: str) -> str:
    try:
        return _NAMES[tensor.dtype]
    except KeyError:
        raise BadInput(f"a checkpoint cannot store {tensor.dtype}", where=name) from None


def total_bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
