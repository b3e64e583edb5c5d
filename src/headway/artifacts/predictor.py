"""The interface between recipes and the server: input fields, batched answers and errors. Imports nothing heavy.

A recipe's Service is built from a bundle. The server parses requests, enforces limits and forms batches; the service
receives validated pixels and text, and knows nothing of HTTP.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, runtime_checkable

from headway.bundle.format import WEIGHTS, Bundle
from headway.core.errors import BadBundle, BadInput, HeadwayError
from headway.core.platform import state_dir

if TYPE_CHECKING:
    from torch import Tensor

    from headway.artifacts.onnx import Graph


# Choice of the inference engine: torch, or ONNX Runtime if it gives the same results and is measured to be faster.
#
# Exporting a graph takes half a minute, so it happens only for `onnx`, and the graph is cached under the checksum of
# the weights. `auto` uses a cached graph. At every start, the engine is verified against torch before it is used.


log = logging.getLogger("headway.serve")

Engine = Literal["auto", "torch", "onnx"]
Run = Callable[[Sequence["Tensor"]], "list[Tensor]"]  # inputs in the graph's order -> outputs in the graph's order
_ROUNDS: Final = 7
_BENCHMARK_ROWS: Final = (1, 8)  # batch sizes: a single input, and a batch


@runtime_checkable
class SingleGraphService(Protocol):
    """A service whose answers, without explanations, come from one pass through one graph, or start with one."""

    def graph(self) -> Graph: ...

    def use(self, run: Run) -> None:
        """Replace the graph's computation by `run`."""
        ...


def choose_engine(service: object, bundle: Bundle, engine: Engine) -> str:
    """Set the service's engine; return which one and why. Raises BadInput if `onnx` is requested but impossible."""
    if engine == "torch":
        return "torch (--engine torch)"
    if not isinstance(service, SingleGraphService):
        if engine == "onnx":
            raise BadInput(
                f"{bundle.recipe} decodes step by step and cannot be exported as a single graph", fix="--engine torch"
            )
        return "torch: this recipe cannot be exported as a single graph"
    path = graph_path(bundle)
    if engine == "auto" and not path.exists():
        return "torch: no graph has been exported from this bundle (--engine onnx exports it)"
    try:
        return _try_onnx(service, path, engine)
    except (HeadwayError, ImportError) as error:
        if engine == "onnx" and isinstance(error, HeadwayError):
            raise
        log.warning("ONNX Runtime is not used: %s", error)
        return f"torch: {error}"


def graph_path(bundle: Bundle) -> Path:
    return state_dir() / "graphs" / f"{bundle.recipe}-{bundle.record.files[WEIGHTS].sha256[:16]}.onnx"


def _try_onnx(service: SingleGraphService, path: Path, engine: Engine) -> str:
    from headway.artifacts.onnx import check_outputs

    graph = service.graph()
    if not path.exists():
        _write(graph, path)
    run = session(graph, path)
    difference = check_outputs(graph, lambda inputs: run(list(inputs.values())), "ONNX Runtime")
    ours, theirs = benchmark(graph, lambda inputs: _torch(graph, inputs), run)
    message = f"{1e3 * theirs:.1f} ms against torch's {1e3 * ours:.1f}, difference {difference:.0e}"
    if engine == "auto" and theirs >= ours:
        return f"torch: ONNX Runtime is not faster here ({message})"
    service.use(run)
    return f"ONNX Runtime: {message}"


def _write(graph: Graph, path: Path) -> None:
    from headway.artifacts.onnx import write_onnx
    from headway.storage import open_store

    with tempfile.TemporaryDirectory(prefix="headway-graph-") as folder:
        made = write_onnx(graph, Path(folder))
        open_store(str(path.parent)).write(path.name, (Path(folder) / made["file"]).read_bytes())


def session(graph: Graph, path: Path) -> Run:
    """Open an ONNX Runtime session over a file, with as many threads as torch."""
    import torch

    from headway.artifacts.onnx import NotExported

    runtime: Any = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # image decoding needs the cores, too
    try:
        opened = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors have no common base class; the file cannot be used in any case
        raise NotExported(f"{path.name} cannot be read: {error}", fix=f"rm {path}") from error

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        asked: Mapping[str, Any] = {name: each.numpy() for name, each in zip(graph.inputs, inputs, strict=True)}
        return [torch.from_numpy(each) for each in opened.run(list(graph.outputs), asked)]

    return run


def _torch(graph: Graph, inputs: Sequence[Tensor]) -> Any:
    import torch

    with torch.inference_mode():
        return graph.module(*inputs)


def benchmark(graph: Graph, *runs: Callable[[Sequence[Tensor]], Any]) -> list[float]:
    """Benchmark each for one input and for a batch; return the sums of the median seconds.

    Runs alternate, so that disturbances affect all alike. The first round is warm-up.
    """
    whole = [0.0] * len(runs)
    for rows in _BENCHMARK_ROWS:
        inputs = [each[:1].repeat(rows, *[1] * (each.dim() - 1)) for each in graph.inputs.values()]
        turns = [[_seconds(run, inputs) for run in runs] for _ in range(_ROUNDS + 1)]
        whole = [sum(pair) for pair in zip(whole, map(statistics.median, zip(*turns[1:], strict=True)), strict=True)]
    return whole


def _seconds(run: Callable[[Sequence[Tensor]], Any], inputs: Sequence[Tensor]) -> float:
    began = time.perf_counter()
    run(inputs)
    return time.perf_counter() - began


MEDIA_TYPE = "application/problem+json"


class PredictionError(Exception):
    """An error response, as JSON problem details (RFC 9457): a bad request, or a failure of the server."""

    def __init__(self, status: int, detail: str, *, at: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.at = status, detail, at
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        problem = {"type": "about:blank", "title": HTTPStatus(self.status).phrase, "status": self.status}
        return {**problem, "detail": self.detail, **({"pointer": self.at} if self.at else {})}


def bad_request(detail: str, at: str = "") -> PredictionError:
    return PredictionError(400, detail, at=at)


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One input of a model: `picture` arrives as RGB pixels (height, width, 3) in uint8, `text` as str."""

    name: str
    kind: Literal["picture", "text"]
    summary: str
    required: bool = True


Instance = Mapping[str, Any]  # field name -> pixels or text, validated
Answer = dict[str, Any]  # plain JSON


class PredictionService(Protocol):
    """A recipe's model behind the server. `answer` runs in one thread at a time; `prepare` may run in several."""

    @property
    def fields(self) -> tuple[Field, ...]: ...

    def prepare(self, instance: Instance) -> Any:
        """Do the work that concerns one input alone: resizing, splitting into subwords."""
        ...

    def answer(self, prepared: Sequence[Any], *, explain: bool) -> list[Answer]:
        """Return one answer per input, in order. `explain` adds what the demo page shows, such as attention maps."""
        ...


# Recipe -> "module:Class" of its service, constructed from a Bundle and imported on use. Sorted.
SERVICE_CLASSES: Final[dict[str, str]] = {
    "captioning": "headway.recipes.captioning.inference:CaptionService",
    "classification": "headway.recipes.classification.inference:ClassService",
    "grading": "headway.recipes.grading.inference:GradeService",
    "translation": "headway.recipes.translation.inference:TranslationService",
}


def open_service(bundle: Bundle) -> PredictionService:
    if bundle.recipe not in SERVICE_CLASSES:
        raise BadBundle(
            f"this version of Headway cannot serve the recipe {bundle.recipe!r}",
            where=bundle.url,
            fix="use the version that exported it, or a newer one",
        )
    module, _, name = SERVICE_CLASSES[bundle.recipe].partition(":")
    made: PredictionService = getattr(import_module(module), name)(bundle)
    return made
