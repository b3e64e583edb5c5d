"""A captioner's two graphs, driven by a program that has neither Headway nor torch, say what the model says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.artifacts.onnx import write_onnx
from headway.recipes.captioning.beam_search import caption
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.model import DECODERS, Captioner
from headway.recipes.captioning.onnx import graphs
from headway.recipes.captioning.vocabulary import END, PAD, START, UNKNOWN, Vocabulary

WORDS = Vocabulary.of([" ".join(f"w{number}" for number in range(30))], min_count=1, max_words=100)


def greedy(folder: Path, picture: np.ndarray[Any, Any], length: int) -> list[int]:
    """As its user would write it, with ONNX Runtime and numpy alone."""
    onnxruntime = pytest.importorskip("onnxruntime")
    see, say = (onnxruntime.InferenceSession(str(folder / f"{name}.onnx")) for name in ("see", "say"))
    names = [output.name for output in see.get_outputs()]
    scores, *state = see.run(names, {"picture": picture})
    known = dict(zip(names[1:], state, strict=True))
    said: list[int] = []
    while len(said) < length:
        scores[:, [PAD, START, UNKNOWN]] = -np.inf
        said.append(int(scores.argmax()))
        if said[-1] == END:
            break
        outputs = [output.name for output in say.get_outputs()]
        taken = {entry.name for entry in say.get_inputs()}
        given = {name: value for name, value in {"word": np.array([[said[-1]]]), **known}.items() if name in taken}
        scores, *changed = say.run(outputs, given)
        known |= {name.removeprefix("next_"): value for name, value in zip(outputs[1:], changed, strict=True)}
    return said


@pytest.mark.slow
@pytest.mark.parametrize("decoder", sorted(DECODERS))
def test_the_graphs_say_what_the_model_says(decoder: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    torch.manual_seed(3)
    cfg = Config(decoder=decoder, image_size=32, width=8, embedding_size=16, hidden_size=32, max_length=8)
    model = Captioner(cfg, WORDS, fresh=False).eval()
    for graph in graphs(model, cfg):
        write_onnx(graph, tmp_path)
    picture = torch.randint(0, 256, (1, 3, cfg.side, cfg.side), dtype=torch.uint8)
    expected = [word for word in caption(model, picture, max_length=8)[0].tolist() if word != PAD]
    assert greedy(tmp_path, picture.numpy(), 8) == expected
