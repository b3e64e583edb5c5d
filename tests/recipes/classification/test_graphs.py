"""The graph that other runtimes get answers as the model does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headway.artifacts.onnx import write_onnx
from headway.recipes.classification.model import Classifier, graphs
from tests.recipes.classification.tiny import settings


@pytest.mark.slow
def test_a_classifier_is_one_graph_that_answers_as_it_does(tmp_path: Path) -> None:
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name)
    torch.manual_seed(0)
    (graph,) = graphs(Classifier(settings(), ["a", "b", "c"]), settings())
    assert {"picture"} == set(graph.inputs)
    record = write_onnx(graph, tmp_path)  # checked by value inside, on batches of two and of three
    assert (tmp_path / "classifier.onnx").stat().st_size > 400_000
    assert record
