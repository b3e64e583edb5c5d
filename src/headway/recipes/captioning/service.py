"""Captions for pictures that a server was sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from headway.bundle import Bundle
from headway.recipes.captioning.predict import Predictor
from headway.serve.service import Answer, Field, Instance


class CaptionService:
    fields = (Field(name="image", kind="picture", summary="a picture"),)

    def __init__(self, bundle: Bundle) -> None:
        self._predictor = Predictor(bundle)

    def prepare(self, instance: Instance) -> Tensor:
        side = self._predictor.side
        square = ImageOps.fit(Image.fromarray(instance["image"]), (side, side), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(square)).permute(2, 0, 1)

    def answer(self, prepared: Sequence[Any], *, explain: bool) -> list[Answer]:
        return [{"text": text} for text in self._predictor.captions(list(prepared))]
