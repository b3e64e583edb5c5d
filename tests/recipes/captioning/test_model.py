"""The captioner: one answer a word, whole captions at once or word by word, one picture or many."""

from __future__ import annotations

import pytest
import torch

from headway.errors import BadInput
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.model import DECODERS, ENCODERS, Captioner, rebuild
from headway.recipes.captioning.words import PAD, SPECIAL, START, UNKNOWN, Vocabulary
from tests.recipes.folders import TINY

WORDS = Vocabulary([*SPECIAL, "a", "red", "blue", "star", "ring"])
BOTH = pytest.mark.parametrize("decoder", sorted(DECODERS))


def captioner(decoder: str = "attention", words: Vocabulary = WORDS, **settings: object) -> Captioner:
    torch.manual_seed(5)
    return Captioner(Config(**{**TINY, "decoder": decoder, **settings}), words)


def some_pictures(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, 32, 32), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def test_the_names_in_the_config_are_those_of_the_registries() -> None:
    from typing import get_args, get_type_hints

    hints = get_type_hints(Config)
    assert list(get_args(hints["encoder"])) == sorted(ENCODERS)
    assert list(get_args(hints["decoder"])) == sorted(DECODERS)


@BOTH
def test_word_by_word_gives_the_scores_of_the_whole_caption(decoder: str) -> None:
    model = captioner(decoder).eval()
    words = torch.tensor([[START, 4, 5, 7], [START, 4, 6, 8]])
    grid = model.encoder(some_pictures(2))
    at_once, _ = model.decoder(words, model.decoder.start(grid, rows=2))
    memory = model.decoder.start(grid, rows=2)
    for step in range(4):
        scores, memory = model.decoder(words[:, step : step + 1], memory)
        torch.testing.assert_close(scores[:, 0], at_once[:, step])


@BOTH
def test_captions_of_one_picture_share_it_and_do_not_mix_with_those_of_others(decoder: str) -> None:
    model = captioner(decoder).eval()
    pictures = some_pictures(3)
    words = torch.tensor([[START, 4, 5], [START, 6, 7]])
    together, _ = model.decoder(words.repeat(3, 1), model.decoder.start(model.encoder(pictures), rows=6))
    for n in range(3):
        alone, _ = model.decoder(words, model.decoder.start(model.encoder(pictures[n : n + 1]), rows=2))
        torch.testing.assert_close(together[2 * n : 2 * n + 2], alone)


@BOTH
def test_the_loss_is_a_sum_over_words_and_padding_counts_nothing(decoder: str) -> None:
    model = captioner(decoder).eval()
    pictures, captions = some_pictures(2), torch.tensor([[[START, 4, 5, 2]], [[START, 6, 2, PAD]]])
    loss, count = model(pictures, captions)
    assert int(count) == 5
    parts = [model(pictures[:1], captions[:1])[0], model(pictures[1:], captions[1:, :, :3])[0]]
    torch.testing.assert_close(loss, parts[0] + parts[1])


@BOTH
def test_every_weight_learns(decoder: str) -> None:
    model = captioner(decoder)
    loss, count = model(some_pictures(2), torch.tensor([[[START, 4, 5, 2]], [[START, 6, 8, 2]]]))
    (loss / count).backward()
    assert not [name for name, weight in model.named_parameters() if weight.grad is None]


def test_form_is_seen_without_colour() -> None:
    """Pictures of the same brightness differ in the colour's part of the grid alone."""
    model = captioner()
    grey = torch.full((1, 3, 32, 32), 100, dtype=torch.uint8)
    red = grey + torch.tensor([60, -30, -30], dtype=torch.int16).view(1, 3, 1, 1)
    one, other = (model.encoder(picture)[0] for picture in (grey, red))
    torch.testing.assert_close(one[:, : 4 * TINY["width"]], other[:, : 4 * TINY["width"]])
    assert not torch.allclose(one[:, 4 * TINY["width"] :], other[:, 4 * TINY["width"] :])


def test_label_smoothing_is_as_torch_defines_it() -> None:
    plain, smooth = captioner().eval(), captioner(label_smoothing=0.1).eval()
    pictures, captions = some_pictures(1), torch.tensor([[[START, 4]]])
    scores, _ = plain.decoder(captions[0, :, :1], plain.decoder.start(plain.encoder(pictures), rows=1))
    chances = scores[0, 0].log_softmax(0)
    torch.testing.assert_close(smooth(pictures, captions)[0], -(0.9 * chances[4] + 0.1 * chances.mean()))


def test_hidden_words_are_hidden_only_while_learning() -> None:
    model = captioner(word_dropout=0.5)
    words = torch.full((4, 50), 4)
    words[:, 0] = START
    hidden = model.decoder._forgetful(words)
    assert (hidden[:, 0] == START).all()
    assert 0.3 < (hidden[:, 1:] == UNKNOWN).float().mean() < 0.7
    assert torch.equal(model.eval().decoder._forgetful(words), words)


def test_its_state_holds_its_words_so_that_it_can_be_rebuilt() -> None:
    model = captioner()
    again = rebuild(Config(**TINY), model.state_dict())
    assert again.vocabulary.words == WORDS.words
    assert torch.equal(again.eval().encoder(some_pictures(1)), model.eval().encoder(some_pictures(1)))


def test_weights_are_not_put_under_other_words() -> None:
    other = Vocabulary([*SPECIAL, "a", "red", "blue", "ring", "star"])
    with pytest.raises(BadInput, match="9 words"):
        captioner(words=other).load_state_dict(captioner().state_dict())
