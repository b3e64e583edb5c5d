"""ONNX Runtime against torch, on trained bundles: which one `headway serve` chooses, and how long each takes.

A classifier and a grader answer in one pass; a captioner's encoder is one pass, and torch runs the beam search: the
whole answer is timed, from prepared pictures to JSON, alone and in a batch of 8. Translators decode word by word and
use torch: for them the parts that a search calls are timed. The engines take turns, with one thread, and their answers
are compared. Broken: an answer that differs, or a choice of the slower engine if the other is faster by more than a
tenth.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.harness import interleave, note

EXAMPLES = Path(__file__).parents[1] / "examples"
TURNS = 30
# The shortest training that leaves weights which are not those that a model is born with.
SHORT = {
    "classification": ("leaves.yaml", "config.epochs=1"),
    "grading": ("cards.yaml", "config.phase1_epochs=1", "config.phase2_epochs=1", "config.train_samples=200"),
    "captioning": ("captions.yaml", "config.epochs=1"),
    "translation": ("translation.yaml", "config.epochs=1"),
}
WHOLE = ("captioning", "classification", "grading")


def main() -> int:
    import torch

    torch.set_num_threads(1)
    broken = 0
    with tempfile.TemporaryDirectory(prefix="headway-engines-") as name:
        folder = Path(name)
        os.environ["HEADWAY_HOME"] = str(folder / "home")
        print("| | torch (ms) | ONNX Runtime (ms) | ONNX Runtime ÷ torch | same answers | chosen |")
        print("| --- | ---: | ---: | ---: | --- | --- |")
        for recipe in SHORT:
            bundle = trained(recipe, folder)
            broken += whole(recipe, bundle) if recipe in WHOLE else parts(recipe, bundle, folder)
    return broken


def trained(recipe: str, folder: Path) -> Any:
    """The bundle of a short training on drawn data."""
    from headway.bundle.format import Bundle

    file, *settings = SHORT[recipe]
    words = [word for setting in (f"outputs={folder}", *settings) for word in ("--set", setting)]
    command = [sys.executable, "-m", "headway", "run", "-f", str(EXAMPLES / file), "--name", recipe, *words]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return Bundle.open(str(folder / recipe / "export"))


def whole(recipe: str, bundle: Any) -> int:
    """Answers of the service, as a server gives them."""
    from headway.artifacts import predictor as inference_engine
    from headway.artifacts.predictor import open_service

    plain, other = open_service(bundle), open_service(bundle)
    inference_engine.choose_engine(other, bundle, "onnx")  # makes the graph, which `auto` then measures
    chosen = inference_engine.choose_engine(open_service(bundle), bundle, "auto").partition(":")[0]
    prepared = [plain.prepare(instance) for instance in pictures(recipe, 8)]
    broken = 0
    for rows in (1, 8):
        sides = {"torch": plain, "ONNX Runtime": other}
        said = [service.answer(prepared[:rows], explain=False) for service in sides.values()]
        same = alike(*said)
        asked: dict[str, Callable[[], object]] = {
            name: partial(service.answer, prepared[:rows], explain=False) for name, service in sides.items()
        }
        broken += told(f"{recipe}, {'alone' if rows == 1 else f'{rows} at once'}", asked, same, chosen)
    return broken


def parts(recipe: str, bundle: Any, folder: Path) -> int:
    """The graphs of a recipe that searches; a server stays with torch whatever they take."""
    import torch

    from headway.artifacts import predictor as inference_engine
    from headway.artifacts.onnx import check_outputs, write_onnx
    from headway.artifacts.predictor import open_service

    predictor = open_service(bundle)._predictor  # type: ignore[attr-defined]
    graphs = import_module(f"headway.recipes.{recipe}.graphs").graphs(predictor.model, predictor.config)
    broken = 0
    for graph in graphs:
        write_onnx(graph, folder)
        run = inference_engine.session(graph, folder / f"{graph.name}.onnx")
        check_outputs(
            graph, lambda inputs, run=run: run(list(inputs.values())), "ONNX Runtime"
        )  # raises where they differ
        inputs = list(graph.inputs.values())

        def by_torch(graph: Any = graph, inputs: Any = inputs) -> Any:
            with torch.inference_mode():
                return graph.module(*inputs)

        asked: dict[str, Callable[[], object]] = {"torch": by_torch, "ONNX Runtime": partial(run, inputs)}
        broken += told(f"{recipe}: {graph.name}", asked, True, None)
    return broken


def told(name: str, asked: dict[str, Callable[[], object]], same: bool, chosen: str | None) -> int:
    rows = {row.name: row.median for row in interleave(asked, TURNS)}
    ratio = rows["ONNX Runtime"] / rows["torch"]
    times = " | ".join(f"{1e3 * seconds:.2f}" for seconds in rows.values())
    print(f"| {name} | {times} | {ratio:.2f} | {'yes' if same else 'NO'} | {chosen or 'torch, always'} |", flush=True)
    for side, seconds in rows.items():
        note(name, side, 1e3 * seconds, "ms")
    slower = chosen is not None and (ratio > 1.1 if chosen == "ONNX Runtime" else ratio < 0.9)
    return int(slower or not same)


def pictures(recipe: str, count: int) -> list[dict[str, Any]]:
    import numpy as np

    names = ("front", "back") if recipe == "grading" else ("image",)
    dice = np.random.default_rng(7)
    return [{name: dice.integers(0, 255, (160, 120, 3), dtype=np.uint8) for name in names} for _ in range(count)]


def alike(ours: Any, theirs: Any) -> bool:
    """The same words, and numbers within a thousandth."""
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(alike(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, Sequence) and not isinstance(ours, str):
        return len(ours) == len(theirs) and all(map(alike, ours, theirs))
    if isinstance(ours, float):
        return math.isclose(ours, theirs, abs_tol=1e-3)
    return bool(ours == theirs)


if __name__ == "__main__":
    sys.exit(main())
