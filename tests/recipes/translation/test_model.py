"""The Transformer: padding changes nothing, remembering changes nothing, and its state is enough to rebuild it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headway.core.errors import BadInput
from headway.data.text import END, PAD, START
from headway.recipes.translation.config import SIZES, Config
from headway.recipes.translation.model import Translator, rebuild
from tests.recipes.translation.tiny import settings, tokenizer, translator

KINDS = [
    {"norm": "pre", "positions": "rotary"},
    {"norm": "post", "positions": "sinusoidal"},
    {"norm": "pre", "positions": "sinusoidal", "tied": False},
]
SOURCE = torch.tensor([[50, 60, 70, END], [80, 90, END, PAD]])
TARGET = torch.tensor([[START, 55, 65, END], [START, 75, END, PAD]])


def test_the_small_size_is_four_and_four_layers_of_128() -> None:
    assert Config(model_size="small").shape == SIZES["small"] == (4, 4, 128, 512, 8)
    assert Config(model_size="small", d_model=64, heads=4).shape == (4, 4, 64, 512, 4)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_batch_is_its_sentences_one_by_one(kind: dict[str, str]) -> None:
    model = translator(**kind)
    together, tokens = model(SOURCE, TARGET)
    alone = [model(SOURCE[:1], TARGET[:1]), model(SOURCE[1:, :3], TARGET[1:, :3])]
    assert int(tokens) == sum(int(count) for _, count in alone) == 5
    torch.testing.assert_close(together, alone[0][0] + alone[1][0])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_writing_word_by_word_scores_as_reading_all_at_once(kind: dict[str, str]) -> None:
    """The loss of a sentence is the sum over what `write` says of each of its words."""
    model = translator(**kind, label_smoothing=0.0)
    loss, _ = model(SOURCE, TARGET)
    torch.testing.assert_close(-chances(model, SOURCE, TARGET).sum(), loss, rtol=1e-4, atol=1e-4)


def chances(model: Translator, source: Tensor, target: Tensor) -> Tensor:
    memory, total = model.read(source), torch.zeros(len(source))
    for given, wanted in zip(target.T, target.T[1:], strict=False):
        scores, memory = model.write(given, memory)
        found = scores.log_softmax(1).gather(1, wanted[:, None])[:, 0]
        total += torch.where(wanted == PAD, 0.0, found)
    return total


@torch.no_grad()
def test_a_word_depends_on_its_place_and_on_nothing_after_it() -> None:
    model = translator()
    first, _ = model(SOURCE[:1], torch.tensor([[START, 55, 65, END]]))
    swapped, _ = model(torch.tensor([[60, 50, 70, END]]), torch.tensor([[START, 55, 65, END]]))
    assert not torch.isclose(first, swapped)
    begun = [model(SOURCE[:1], torch.tensor([[START, 55, last]]))[0] for last in (65, 66)]
    prefix = model(SOURCE[:1], torch.tensor([[START, 55]]))[0]
    assert all(loss > prefix for loss in begun)


@pytest.mark.parametrize("tied", [True, False])
def test_the_state_alone_rebuilds_it(tied: bool) -> None:
    model = translator(tied=tied)
    again = rebuild(settings(tied=tied), model.state_dict())
    assert again.tokenizer.to_json() == model.tokenizer.to_json()
    assert not again.training
    with torch.no_grad():
        assert torch.equal(again(SOURCE, TARGET)[0], model(SOURCE, TARGET)[0])
    names = [name for name in model.state_dict() if name.endswith("scores.weight")]
    assert len(names) == (0 if tied else 1)


def test_weights_are_refused_for_other_subwords() -> None:
    from headway.data.text import BpeTokenizer

    other = BpeTokenizer.train(iter(["quite another text", "with other pieces"]), size=280)
    with pytest.raises(BadInput, match="other subwords"):
        Translator(settings(), other).load_state_dict(translator().state_dict(), strict=False)


def test_heads_must_share_the_width() -> None:
    with pytest.raises(BadInput, match="d_model 16 cannot be divided into 3 heads") as caught:
        Translator(settings(heads=3), tokenizer())
    assert "set d_model to a multiple of 6" in caught.value.problem.fix
