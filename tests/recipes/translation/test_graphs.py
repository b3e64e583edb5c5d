"""The graphs that other runtimes get translate as the model does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headway.artifacts.onnx import write_onnx
from headway.data.text import END, START
from headway.recipes.translation.beam_search import translate
from headway.recipes.translation.onnx import graphs
from tests.recipes.translation.tiny import settings, translator


@torch.no_grad()
def test_reading_once_and_writing_token_by_token_gives_the_models_own_translation() -> None:
    model = translator()
    reads, writes = (graph.module for graph in graphs(model, settings()))
    source = torch.tensor([[50, 60, 70, END]])
    keys, values = reads(source)
    written = torch.tensor([[START]])
    for wanted in translate(model, source, max_length=5)[0]:
        scores = writes(source, keys, values, written)
        scores[:, [0, 1, 3]] = float("-inf")
        assert int(scores.argmax()) == wanted
        written = torch.cat([written, torch.tensor([[wanted]])], dim=1)


@pytest.mark.slow
def test_onnx_runtime_answers_as_the_model_on_sentences_of_other_lengths(tmp_path: Path) -> None:
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name)
    for graph in graphs(translator(decoder_layers=1), settings(decoder_layers=1)):
        write_onnx(graph, tmp_path)
        assert (tmp_path / f"{graph.name}.onnx").exists()
