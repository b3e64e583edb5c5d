"""Export of models as graphs, to ONNX and torch.export, each verified numerically against the model it came from.

A recipe lists its graphs: the whole model if one pass gives the answer, or the parts that a decoding loop calls. The
files run without Headway, ONNX also without torch. Needs torch, and the extra `onnx` for ONNX.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from headway.core.errors import HeadwayError, MissingExtra

OPSET: Final = 18
BATCH: Final = "batch"
_MAX_BATCH: Final = 4096
_TOLERANCE: Final = 1e-3  # relative to the largest value: other kernels sum in another order


class NotExported(HeadwayError):
    """Raised if a graph cannot be exported, or does not reproduce its model's outputs."""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A module with everything needed to trace it, for `export --as onnx` and `pt2`.

    Args:
        name: File name without extension.
        module: In eval mode; takes tensors, returns a tensor or a tuple of tensors.
        inputs: Example inputs by name, in order, with at least two rows.
        outputs: Names of the outputs, in order.
        dynamic: By input, the dimensions whose size may vary, with a name for the size.
        at_most: Upper bound per dynamic size; 4,096 by default.
        more: Further inputs, of other sizes, for the verification.
        about: A description for the record.

    Example:
        >>> import headway, torch
        >>> line = torch.nn.Linear(2, 1).eval()
        >>> graph = headway.Graph(
        ...     name="line", module=line, inputs={"x": torch.ones(3, 2)}, outputs=("y",), dynamic={"x": {0: "batch"}}
        ... )
        >>> list(graph.inputs)
        ['x']
    """

    name: str  # file name without extension
    module: nn.Module  # in eval mode; takes tensors, returns a tensor or a tuple of tensors
    inputs: Mapping[str, Tensor]  # example inputs by name, in order, with at least two rows
    outputs: tuple[str, ...]
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)  # input -> dimension -> name of the size
    at_most: Mapping[str, int] = field(default_factory=dict)  # upper bound per dynamic size; 4,096 by default
    more: Sequence[Mapping[str, Tensor]] = ()  # further inputs, of other sizes, for the verification
    about: str = ""  # a description for the record


def write_onnx(graph: Graph, folder: Path) -> dict[str, Any]:
    """Write a single file `NAME.onnx`. Raises NotExported unless ONNX Runtime reproduces the model's outputs."""
    try:
        # Imported by name, so that type checks do not need them. torch's exporter needs onnxscript.
        onnx, onnxruntime, _ = (import_module(name) for name in ("onnx", "onnxruntime", "onnxscript"))
    except ModuleNotFoundError as error:
        raise MissingExtra("onnx", needed_for="headway export --as onnx", package=error.name or "onnx") from None
    path = folder / f"{graph.name}.onnx"
    with _map_export_errors(graph, "ONNX"), _quiet():
        torch.onnx.export(
            graph.module,
            tuple(graph.inputs.values()),
            str(path),
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes=_dynamic(graph),
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def answer(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        asked = {name: value.numpy() for name, value in inputs.items()}
        return [torch.from_numpy(each) for each in session.run(list(graph.outputs), asked)]

    return _record(graph, path, check_outputs(graph, answer, "ONNX Runtime"))


def write_pt2(graph: Graph, folder: Path) -> dict[str, Any]:
    """Write `NAME.pt2` for `torch.export.load`. Raises NotExported unless it reproduces the model's outputs."""
    path = folder / f"{graph.name}.pt2"
    with _map_export_errors(graph, "torch.export"), _quiet():
        program = torch.export.export(
            graph.module, tuple(graph.inputs.values()), dynamic_shapes=_dynamic(graph), strict=False
        )
        torch.export.save(program, str(path))
        loaded = torch.export.load(str(path)).module()

    def answer(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        return _as_list(loaded(*inputs.values()))

    return _record(graph, path, check_outputs(graph, answer, "the exported program"))


WRITERS: Final = {"onnx": write_onnx, "pt2": write_pt2}


def _dynamic(graph: Graph) -> tuple[Any, ...]:
    """Return the dynamic shapes in the structure of the module's arguments: those in *args form one tuple."""
    names = {name for each in graph.dynamic.values() for name in each.values()}
    kinds = {name: torch.export.Dim(name, min=1, max=graph.at_most.get(name, _MAX_BATCH)) for name in sorted(names)}
    shapes = [{at: kinds[name] for at, name in graph.dynamic.get(each, {}).items()} for each in graph.inputs]
    taken = [parameter.kind for parameter in signature(graph.module.forward).parameters.values()]
    if Parameter.VAR_POSITIONAL not in taken:
        return tuple(shapes)
    plain = taken.index(Parameter.VAR_POSITIONAL)
    return (*shapes[:plain], tuple(shapes[plain:]))


def check_outputs(graph: Graph, answer: Any, what: str) -> float:
    """Return the largest deviation from the model over all inputs, relative to the model's largest value.

    Raises NotExported if shapes differ or the deviation exceeds the tolerance.
    """
    worst = 0.0
    for inputs in (graph.inputs, *graph.more):
        with torch.no_grad():
            expected = _as_list(graph.module(*inputs.values()))
        for name, expected_values, exported in zip(graph.outputs, expected, answer(inputs), strict=True):
            if expected_values.shape != exported.shape:
                raise NotExported(
                    f"{graph.name}: {what} gives {name} as {tuple(exported.shape)}, not {tuple(expected_values.shape)}"
                )
            scale = max(1.0, float(expected_values.double().abs().max()))
            worst = max(worst, float((expected_values.double() - exported.double()).abs().max()) / scale)
    if not worst <= _TOLERANCE:
        raise NotExported(f"{graph.name}: {what} differs from the model by {worst:.2g} of its largest value")
    return worst


def _as_list(answer: Any) -> list[Tensor]:
    return [each.detach() for each in ([answer] if isinstance(answer, Tensor) else answer)]


def _record(graph: Graph, path: Path, difference: float) -> dict[str, Any]:
    return {
        "file": path.name,
        "about": graph.about,
        "inputs": {name: _describe_tensor(graph, name, value) for name, value in graph.inputs.items()},
        "outputs": list(graph.outputs),
        "bytes": path.stat().st_size,
        "largest_difference": difference,
    }


def _describe_tensor(graph: Graph, name: str, value: Tensor) -> str:
    varies = graph.dynamic.get(name, {})
    sizes = (varies.get(at, str(size)) for at, size in enumerate(value.shape))
    return f"{str(value.dtype).removeprefix('torch.')} [{', '.join(sizes)}]"


@contextmanager
def _map_export_errors(graph: Graph, what: str) -> Iterator[None]:
    try:
        yield
    except HeadwayError:
        raise
    except Exception as error:  # exporters raise any type; it is chained as the cause
        first = str(error).strip().splitlines()[:1]
        raise NotExported(
            f"{graph.name} cannot be exported as {what}: {type(error).__name__}: {first[0] if first else ''}",
            fix="use the bundle, or another format: --as pth",
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Context manager: silence the exporters' long warnings about intended behaviour."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
