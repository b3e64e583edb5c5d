"""What computes a model's answers: torch, or ONNX Runtime where it says the same and was measured to be faster.

Writing a graph takes half a minute, so that it is kept, by the weights' checksum, and is only made for `onnx`. `auto`
uses one that is there already. Whatever is used was checked against torch at this very start.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, runtime_checkable

from headway.bundle.format import WEIGHTS, Bundle
from headway.core.errors import BadInput, HeadwayError
from headway.core.paths import home

if TYPE_CHECKING:
    from torch import Tensor

    from headway.artifacts.onnx import Graph

log = logging.getLogger("headway.serve")

Engine = Literal["auto", "torch", "onnx"]
Run = Callable[[Sequence["Tensor"]], "list[Tensor]"]  # a graph's inputs in order -> its outputs in order
_TIMES: Final = 7
_ROWS: Final = (1, 8)  # alone, and in a batch


@runtime_checkable
class SingleGraphService(Protocol):
    """A service whose plain answers, or what they begin with, come from one pass through one graph."""

    def graph(self) -> Graph: ...

    def use(self, run: Run) -> None:
        """From now on this computes what the graph does."""
        ...


def choose(service: object, bundle: Bundle, asked: Engine) -> str:
    """Give the service its engine, and say which and why. BadInput where one is demanded that cannot be had."""
    if asked == "torch":
        return "torch, as asked"
    if not isinstance(service, SingleGraphService):
        if asked == "onnx":
            raise BadInput(f"{bundle.recipe} decodes word by word: there is no one graph of it", fix="--engine torch")
        return "torch: this recipe is no single graph"
    path = graph_path(bundle)
    if asked == "auto" and not path.exists():
        return "torch: no graph has been made of this bundle (--engine onnx makes it)"
    try:
        return _tried(service, path, asked)
    except (HeadwayError, ImportError) as error:
        if asked == "onnx" and isinstance(error, HeadwayError):
            raise
        log.warning("ONNX Runtime is not used: %s", error)
        return f"torch: {error}"


def graph_path(bundle: Bundle) -> Path:
    return home() / "graphs" / f"{bundle.recipe}-{bundle.record.files[WEIGHTS].sha256[:16]}.onnx"


def _tried(service: SingleGraphService, path: Path, asked: Engine) -> str:
    from headway.artifacts.onnx import checked

    graph = service.graph()
    if not path.exists():
        _write(graph, path)
    run = session(graph, path)
    difference = checked(graph, lambda inputs: run(list(inputs.values())), "ONNX Runtime")
    ours, theirs = race(graph, lambda inputs: _torch(graph, inputs), run)
    told = f"{1e3 * theirs:.1f} ms against torch's {1e3 * ours:.1f}, differing by {difference:.0e}"
    if asked == "auto" and theirs >= ours:
        return f"torch: ONNX Runtime is not faster here ({told})"
    service.use(run)
    return f"ONNX Runtime: {told}"


def _write(graph: Graph, path: Path) -> None:
    from headway.artifacts.onnx import write_onnx
    from headway.storage import open_store

    with tempfile.TemporaryDirectory(prefix="headway-graph-") as folder:
        made = write_onnx(graph, Path(folder))
        open_store(str(path.parent)).write(path.name, (Path(folder) / made["file"]).read_bytes())


def session(graph: Graph, path: Path) -> Run:
    """ONNX Runtime over a file, with as many threads as torch has."""
    import torch

    from headway.artifacts.onnx import NotExported

    runtime: Any = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # cores are for decoding pictures, too
    try:
        opened = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors share no base of their own; whatever it says, this file is of no use
        raise NotExported(f"{path.name} cannot be read: {error}", fix=f"rm {path}") from error

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        asked: Mapping[str, Any] = {name: each.numpy() for name, each in zip(graph.inputs, inputs, strict=True)}
        return [torch.from_numpy(each) for each in opened.run(list(graph.outputs), asked)]

    return run


def _torch(graph: Graph, inputs: Sequence[Tensor]) -> Any:
    import torch

    with torch.inference_mode():
        return graph.module(*inputs)


def race(graph: Graph, *runs: Callable[[Sequence[Tensor]], Any]) -> list[float]:
    """Seconds of each for one input and for a batch: the medians' sum. In turns, so that what disturbs hits all alike;
    the first turn is not counted."""
    whole = [0.0] * len(runs)
    for rows in _ROWS:
        inputs = [each[:1].repeat(rows, *[1] * (each.dim() - 1)) for each in graph.inputs.values()]
        turns = [[_seconds(run, inputs) for run in runs] for _ in range(_TIMES + 1)]
        whole = [sum(pair) for pair in zip(whole, map(statistics.median, zip(*turns[1:], strict=True)), strict=True)]
    return whole


def _seconds(run: Callable[[Sequence[Tensor]], Any], inputs: Sequence[Tensor]) -> float:
    began = time.perf_counter()
    run(inputs)
    return time.perf_counter() - began
