"""The interface between recipes and the server: input fields, batched answers and errors. Imports nothing heavy.

A recipe's Service is built from a bundle. The server parses requests, enforces limits and forms batches; the service
receives validated pixels and text, and knows nothing of HTTP.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, runtime_checkable

from headway.bundle.format import WEIGHTS, Bundle
from headway.core.errors import BadBundle, BadInput, HeadwayError
from headway.core.platform import state_dir
from headway.plugins import RECIPES, Recipe

if TYPE_CHECKING:
    from torch import Tensor

    from headway.artifacts.onnx import Graph
    from headway.model import Input


# Choice of the inference engine: torch, or ONNX Runtime if it gives the same results.
#
# Exporting a graph takes half a minute, so it happens only for `onnx`, and the graph is cached under the checksum of
# the weights. `auto` uses a cached graph: ONNX Runtime was faster for every recipe (docs/benchmarks.md, engines). At
# every start, its results are compared with torch's before it is used.


log = logging.getLogger("headway.serve")

Engine = Literal["auto", "torch", "onnx"]
Run = Callable[[Sequence["Tensor"]], "list[Tensor]"]  # inputs in the graph's order -> outputs in the graph's order


@runtime_checkable
class SingleGraphService(Protocol):
    """A service whose answers, without explanations, come from one pass through one graph, or start with one."""

    def graph(self) -> Graph: ...

    def use(self, run: Run) -> None:
        """Replace the graph's computation by `run`."""
        ...


def choose_engine(service: object, bundle: Bundle | None, engine: Engine) -> str:
    """Set the service's engine; return which one and why. Raises BadInput if `onnx` is requested but impossible."""
    if engine == "torch":
        return "torch (--engine torch)"
    if bundle is None or not isinstance(service, SingleGraphService):
        if engine == "onnx":
            raise BadInput(
                "this model decodes step by step and cannot be exported as a single graph",
                fix="--engine torch",
            )
        return "torch: this model has no single graph for ONNX Runtime"
    path = graph_path(bundle)
    if engine == "auto" and not path.exists():
        return "torch: no graph has been exported from this bundle (--engine onnx exports it)"
    try:
        return _use_onnx(service, path)
    except (HeadwayError, ImportError) as error:
        if engine == "onnx" and isinstance(error, HeadwayError):
            raise
        log.warning("ONNX Runtime is not used: %s", error)
        return f"torch: {error}"


def graph_path(bundle: Bundle) -> Path:
    return state_dir() / "graphs" / f"{bundle.recipe}-{bundle.record.files[WEIGHTS].sha256[:16]}.onnx"


def _use_onnx(service: SingleGraphService, path: Path) -> str:
    from headway.artifacts.onnx import check_outputs

    graph = service.graph()
    if not path.exists():
        _write(graph, path)
    run = session(graph, path)
    difference = check_outputs(graph, lambda inputs: run(list(inputs.values())), "ONNX Runtime")
    service.use(run)
    return f"ONNX Runtime: differs from torch by at most {difference:.0e}"


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
    kind: Literal["picture", "text", "value"]  # value: what its declared type says: numbers, rows, sound
    summary: str
    required: bool = True
    declared: Input | None = None  # of a project's model


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


def open_service(bundle: Bundle) -> PredictionService:
    """Load the service of a recipe's bundle. Raises BadBundle if this Headway does not have the recipe."""
    recipe = RECIPES.get(bundle.recipe)
    if recipe is None or not recipe.service:
        raise BadBundle(
            f"this version of Headway cannot serve the recipe {bundle.recipe!r}",
            where=bundle.url,
            fix="use the version that exported it, or a newer one",
        )
    made: PredictionService = load_from_bundle(recipe, "service", bundle)
    return made


# Bundles of strangers: their checksums are right, and their contents anything.


_DIMENSIONS: Final = (
    "attention_size",
    "d_model",
    "dim_feedforward",
    "embedding_size",
    "hidden_size",
    "syntax",
    "width",
)
_LAYERS: Final = ("decoder_layers", "encoder_layers", "layers")
_MOST: Final = {"image_size": 8192, "max_length": 100_000, "beam": 1000, "heads": 4096}
_TRUST: Final = "use a bundle from somebody you trust, or export it again"
_HARMLESS_DIMENSION, _HARMLESS_LAYERS = 4096, 64
_BAD_CONTENT = (
    *(ValueError, TypeError, LookupError, AttributeError),
    *(AssertionError, RuntimeError, ArithmeticError, MemoryError),
)


def load_from_bundle(recipe: Recipe, part: str, bundle: Bundle) -> Any:
    """Call a function of the recipe with the bundle. Raises BadBundle for whatever the files make it raise."""
    _check_sizes(bundle)
    try:
        return recipe.load(part)(bundle)
    except _BAD_CONTENT as error:
        if isinstance(error, HeadwayError):
            raise
        log.debug("%s cannot be loaded", bundle.url, exc_info=True)
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        what = f"its files do not describe a model of the recipe {bundle.recipe!r}: {reason}"
        raise BadBundle(what, where=bundle.url, fix=_TRUST) from None


def _check_sizes(bundle: Bundle) -> None:
    """Refuse settings for a model much larger than the weights: building it would take all memory, or for ever."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(bundle.folder / WEIGHTS, "numpy") as file:
            shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118  it is no dictionary
    except (SafetensorError, OSError):
        return  # reading the weights says what is wrong with them
    widest = max([_HARMLESS_DIMENSION, *(side for shape in shapes for side in shape)])
    limits = dict.fromkeys(_DIMENSIONS, widest) | dict.fromkeys(_LAYERS, max(_HARMLESS_LAYERS, len(shapes))) | _MOST
    for name, value in bundle.config.items():
        if name in limits and isinstance(value, int | float) and not value <= limits[name]:
            what = f"config.json: {name} is {str(value)[:40]}, and its weights allow at most {limits[name]}"
            raise BadBundle(what, where=bundle.url, fix=_TRUST)
