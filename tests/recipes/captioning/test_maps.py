"""Attention sheets: a tile a word, bright where it looked."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from headway.core.errors import BadInput
from headway.recipes.captioning.beam_search import describe
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.inference import TILE, attention_sheet
from tests.recipes.captioning.test_model import captioner
from tests.recipes.folders import TINY


@pytest.mark.parametrize("decoder", ["attention", "glimpse", "transformer"])
def test_it_has_a_row_a_picture_and_is_brightest_where_it_looked(decoder: str) -> None:
    cfg = Config(**{**TINY, "decoder": decoder, "beam": 1, "max_length": 6})
    model = captioner(decoder, max_length=6).eval()
    white = torch.full((2, 3, 32, 32), 255, dtype=torch.uint8)
    said = describe(model, white, max_length=6, beam=1)
    assert said.looks is not None
    sheet = np.asarray(Image.open(io.BytesIO(attention_sheet(model, cfg, white))).convert("L"))
    assert sheet.shape[0] % 2 == 0
    first = sheet[:TILE, TILE : 2 * TILE].reshape(4, TILE // 4, 4, TILE // 4).mean(axis=(1, 3))
    looked = said.looks[0, 0].view(4, 4).numpy()
    assert np.corrcoef(first.ravel(), looked.ravel())[0, 1] > 0.9


def test_a_decoder_that_does_not_look_has_no_sheet() -> None:
    with pytest.raises(BadInput, match="has no attention"):
        attention_sheet(
            captioner("lstm").eval(), Config(**{**TINY, "decoder": "lstm"}), torch.zeros(1, 3, 32, 32).byte()
        )
