"""Every decoder can learn a few captions by heart, and then says them by itself."""

from __future__ import annotations

import pytest
import torch

from headway.recipes.captioning.beam_search import caption
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.model import Captioner
from headway.recipes.captioning.vocabulary import END, PAD, SPECIAL, START, Vocabulary
from tests.recipes.folders import TINY

WORDS = Vocabulary([*SPECIAL, *"abcdef"])
SAID = [[4, 5, 6], [5, 5, 7, 8], [9, 4], [8, 6, 5, 4, 9], [6], [7, 9, 9, 4]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"decoder": "attention", "cell": "gru", "layers": 2, "tied": True, "teacher_forcing": 0.5},
        {"decoder": "attention", "doubly_stochastic": 0.1},
        {"decoder": "glimpse", "syntax": 0},
        {"decoder": "lstm"},
        {"decoder": "transformer", "layers": 2, "tied": True},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_a_decoder_learns_captions_by_heart_and_says_them(settings: dict[str, object]) -> None:
    torch.manual_seed(0)
    cfg = Config(**{**TINY, "embedding_size": 32, "hidden_size": 64, "word_dropout": 0.0, "max_length": 8, **settings})
    model = Captioner(cfg, WORDS)
    grids = torch.randn(len(SAID), 16, model.encoder.channels)
    captions = torch.tensor([[[START, *said, END, *[PAD] * (5 - len(said))]] for said in SAID])
    optimizer = torch.optim.AdamW(model.decoder.parameters(), lr=4e-3)
    for step in range(150):
        model.decoder.own_words = (1 - cfg.teacher_forcing) * step / 149
        loss, count = model(grids, captions)
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
    found = caption(model.eval(), grids, max_length=8, beam=2).tolist()
    assert [row[: row.index(END)] for row in found] == SAID
