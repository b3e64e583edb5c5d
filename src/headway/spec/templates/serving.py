"""The trained model, for eval, compare, export, predict and serve. In headway.yaml: `model: serving:Spirals`.

As it is, it fits the train.py of `headway init script`. For your own: what goes in, what comes out, and how to load it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

import headway


class Spirals(headway.Model):
    # Inputs: Image, Text, Number, Row, Audio, Tensor. Outputs: Classes, Ordinal, Labels, Number, Text, Caption,
    # Picture, Boxes, Tensor.
    inputs = {"point": headway.Row(["x", "y"])}
    outputs = {"spiral": headway.Classes(["first", "second"])}

    def load(self, folder: Path) -> None:
        """Load what the run kept: with headway.start model.safetensors, else the files that your program saved."""
        weights = load_file(folder / "model.safetensors")
        width = weights["0.weight"].shape[0]
        self.net = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2)
        )
        self.net.load_state_dict(weights)

    @torch.no_grad()
    def predict(self, batch: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Answer a list of samples with a list of answers."""
        points = torch.tensor([[each["point"]["x"], each["point"]["y"]] for each in batch])
        return [{"spiral": chances} for chances in self.net(points).softmax(1)]

    # def evaluate(self, data):        # your own scores, one value per sample; default: a table with a column `spiral`
    #     return headway.Scores({"accuracy": [1.0, 0.0]})
    # def graph(self):                 # for export --as onnx
    #     return headway.Graph(name="spirals", module=self.net, inputs={"point": torch.ones(2, 2)},
    #                          outputs=("scores",), dynamic={"point": {0: "batch"}})
