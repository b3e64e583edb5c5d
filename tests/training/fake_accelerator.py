"""An accelerator without hardware: torch's PrivateUse1 backend, in Python. For a process of its own.

Its tensors are computed on the CPU, with two properties of real devices that code can get wrong:

- Copies to the host with `non_blocking=True` arrive only when somebody waits (an event, a synchronize, a blocking
  read). Before, the host sees what was there.
- Random operations draw from the device's own generator.

`LEDGER` counts what makes the host wait.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "fakegpu"
LEDGER: Counter[str] = Counter()
_pinned: set[int] = set()  # addresses of pinned storages
_lock = threading.RLock()  # the saver's thread waits for copies too
_queue: list[tuple[Tensor, Tensor]] = []  # copies to the host that have not arrived: destination, value
MEMORY_LIMIT: list[int] = []  # elements of the largest tensor that fits; empty: no limit


class FakeTensor(Tensor):
    """A tensor on the fake device; `raw` holds its values."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor, device: torch.device) -> FakeTensor:
        made: FakeTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, raw.size(), strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype, device=device
        )
        made.raw = raw
        return made

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def tolist(self) -> Any:
        _block("tolist")
        return self.raw.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class Stream:
    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.waited_for: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited_for.append(other)
        LEDGER["stream waits"] += 1


class Event:
    def __init__(self, *args: Any, **options: Any) -> None:
        self._until = 0

    def record(self, stream: Any = None) -> None:
        with _lock:
            self._until = _arrived[0] + len(_queue)

    def synchronize(self) -> None:
        LEDGER["event waits"] += 1
        _arrive_until(self._until)


_arrived = [0]  # how many copies have arrived since the start


def _arrive(count: int | None = None) -> None:
    """Let that many copies arrive, or all of them; the first to wait for a copy makes it arrive for the others."""
    _arrive_until(sys.maxsize if count is None else _arrived[0] + count)


def _arrive_until(number: int) -> None:
    with _lock:
        while _queue and _arrived[0] < number:
            destination, value = _queue.pop(0)
            _arrived[0] += 1
            destination.copy_(value)


def _block(why: str) -> None:
    LEDGER[f"blocked: {why}"] += 1
    _arrive()


class Module:
    """What torch expects of a device module: torch.fakegpu."""

    Stream, Event = Stream, Event

    def __init__(self, count: int) -> None:
        self._count, self._current, self._streams = count, 0, [Stream()]
        self.default_generators = tuple(torch.Generator() for _ in range(count))
        self.used_streams: list[Stream] = []

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return self._count

    def current_device(self) -> int:
        return self._current

    def set_device(self, device: torch.device) -> None:
        self._current = device.index or 0

    def get_device_name(self, device: Any = None) -> str:
        return "Fake GPU"

    def synchronize(self, device: Any = None) -> None:
        _block("synchronize")

    def manual_seed_all(self, seed: int) -> None:
        for generator in self.default_generators:
            generator.manual_seed(seed)

    def current_stream(self, device: Any = None) -> Stream:
        return self._streams[-1]

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self._streams.append(stream)
        self.used_streams.append(stream)
        try:
            yield
        finally:
            self._streams.pop()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func._schema.name
    if name == "aten::copy_":
        return _copy(*args, **kwargs)
    if name == "aten::_foreach_copy_":
        for destination, source in zip(*args[:2], strict=True):
            _copy(destination, source, *args[2:], **kwargs)
        return None
    if name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select"):
        _block(name)
    device, wrappers = _device_of(args, kwargs), {}

    def unwrap(value: Any) -> Any:
        if isinstance(value, FakeTensor):
            wrappers[id(value.raw)] = value
            return value.raw
        return value

    target = kwargs.get("device")
    inner_args, inner = tree_map(unwrap, args), tree_map(unwrap, kwargs)
    if target is not None:
        target = torch.device(target)
        inner |= {"device": torch.device("cpu")}
        inner.pop("pin_memory", None)
        if name == "aten::_to_copy":
            _count_copy(args[0], target, kwargs)
            if target.type == "cpu" and kwargs.get("non_blocking"):
                raise AssertionError("an asynchronous copy into new memory of the host: nobody can wait for it")
        device = None if target.type == "cpu" else torch.device(NAME, target.index or 0)
    with _generator(func, device):
        result = func(*inner_args, **inner)

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, FakeTensor):
            return value
        if id(value) in wrappers:
            return wrappers[id(value)]
        if device is None:
            return value
        if MEMORY_LIMIT and value.numel() > MEMORY_LIMIT[0]:
            raise torch.OutOfMemoryError(f"{NAME} out of memory")
        return FakeTensor(value, device)

    return result if name == "aten::_local_scalar_dense" else tree_map(wrap, result)


def _device_of(args: Any, kwargs: Any) -> torch.device | None:
    found: list[torch.device] = []
    tree_map(lambda value: found.append(value.device) if isinstance(value, FakeTensor) else None, (args, kwargs))
    assert len(set(found)) <= 1, f"tensors of several devices: {found}"
    return found[0] if found else None


def _copy(destination: Any, source: Any, non_blocking: bool = False) -> Any:
    """Between devices, or within one."""
    if isinstance(destination, FakeTensor):
        _count_copy(source, destination.device, {"non_blocking": non_blocking})
        destination.raw.copy_(source.raw if isinstance(source, FakeTensor) else source)
    elif not isinstance(source, FakeTensor):
        destination.copy_(source)
    elif non_blocking and is_pinned(destination):
        with _lock:
            _queue.append((destination, source.raw.clone()))
        LEDGER["queued to host"] += 1
    else:
        _block("copy to host")
        destination.copy_(source.raw)
    return destination


def _count_copy(source: Any, target: torch.device, kwargs: dict[str, Any]) -> None:
    if isinstance(source, FakeTensor):
        if target.type == "cpu":
            _block("copy to host")
    elif source.dim() and target.type != "cpu":
        queued = kwargs.get("non_blocking") and is_pinned(source)
        LEDGER["queued to device" if queued else "blocked: copy to device"] += 1


@contextlib.contextmanager
def _generator(func: Any, device: torch.device | None) -> Iterator[None]:
    """Draw random numbers from the device's generator."""
    if device is None or torch.Tag.nondeterministic_seeded not in func.tags:
        yield
        return
    own = getattr(torch, NAME).default_generators[device.index or 0]
    before = torch.default_generator.get_state()
    torch.default_generator.set_state(own.get_state())
    try:
        yield
    finally:
        own.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(before)


def is_pinned(tensor: Tensor, device: Any = None) -> bool:
    return tensor.untyped_storage().data_ptr() in _pinned


def _pin(tensor: Tensor, device: Any = None) -> Tensor:
    copied = tensor.clone()
    _pinned.add(copied.untyped_storage().data_ptr())
    _kept.append(copied)
    return copied


_kept: list[Tensor] = []  # pinned memory lives on, so that its addresses are not given to other tensors
_libraries: list[torch.library.Library] = []


def install(devices: int = 2) -> Module:
    """Make the fake device this process's accelerator."""
    module = Module(devices)
    _setup_privateuseone_for_python_backend(NAME, module)
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    for name in ("empty.memory_format", "empty_strided", "_to_copy", "_copy_from"):
        packet, _, overload = name.partition(".")
        library.impl(name, _kernel(getattr(getattr(torch.ops.aten, packet), overload or "default")), "PrivateUse1")
    _autocast()
    zeros = torch.zeros

    def zeros_pinned(*args: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        made = zeros(*args, **options)
        if pin_memory:
            _pinned.add(made.untyped_storage().data_ptr())
            _kept.append(made)
        return made

    torch.zeros = zeros_pinned  # type: ignore[assignment]
    Tensor.pin_memory, Tensor.is_pinned = _pin, is_pinned  # type: ignore[method-assign]
    Tensor.record_stream = lambda self, stream: None  # type: ignore[method-assign]
    return module


def _kernel(func: Any) -> Any:
    return lambda *args, **kwargs: _run(func, args, kwargs)


def _autocast() -> None:
    """Cast the inputs of linear layers, as every accelerator's autocast does; leave all other operations alone."""
    rest = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    rest.fallback(torch.library.fallthrough_kernel)
    linear = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    _libraries.extend((rest, linear))

    def cast_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        dtype = torch.get_autocast_dtype(NAME)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
            return torch.nn.functional.linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))

    linear.impl("linear", cast_linear)
