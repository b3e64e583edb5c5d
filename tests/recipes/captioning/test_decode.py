"""Greedy and beam search, held against trying everything."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from headway.recipes.captioning.beam_search import caption, describe, sample
from headway.recipes.captioning.model import DECODERS, Captioner
from headway.recipes.captioning.vocabulary import END, PAD, SPECIAL, START, UNKNOWN, Vocabulary
from tests.recipes.captioning.test_model import captioner, some_pictures

LENGTH, PENALTY = 4, 0.7


def decisive(decoder: str = "glimpse") -> Captioner:
    """A model whose scores differ from picture to picture and word to word."""
    model = captioner(decoder, Vocabulary([*SPECIAL, "a", "b"])).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    return model


def chance(model: Captioner, picture: Tensor, words: list[int]) -> float:
    """The log-probability of a caption, special words aside."""
    given = torch.tensor([[START, *words[:-1]]])
    scores, _ = model.decoder(given, model.decoder.start(model.encoder(picture[None]), rows=1))
    scores = scores[0].index_fill(1, torch.tensor([PAD, START, UNKNOWN]), float("-inf"))
    return float(scores.log_softmax(1).gather(1, torch.tensor(words)[:, None]).sum())


def every_caption() -> list[list[int]]:
    """All that end within the length, and all that do not end."""
    bodies = [list(body) for length in range(LENGTH) for body in product((4, 5), repeat=length)]
    return [[*body, END] for body in bodies] + [list(body) for body in product((4, 5), repeat=LENGTH)]


@torch.no_grad()
@pytest.mark.parametrize("decoder", sorted(DECODERS))
def test_a_wide_beam_finds_the_best_of_all_captions(decoder: str) -> None:
    model, pictures = decisive(decoder), some_pictures(5)
    found = caption(model, pictures, max_length=LENGTH, beam=16, length_penalty=PENALTY)
    for picture, words in zip(pictures, found.tolist(), strict=True):
        best = max(every_caption(), key=lambda said: chance(model, picture, said) / len(said) ** PENALTY)
        assert [word for word in words if word != PAD] == best


def test_a_beam_of_one_is_greedy() -> None:
    model, pictures = decisive(), some_pictures(6)
    from headway.recipes.captioning.beam_search import _beam

    greedy = caption(model, pictures, max_length=LENGTH)
    assert torch.equal(_beam(model, model.encoder(pictures), LENGTH, 1, PENALTY).words, greedy)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_picture_is_captioned_the_same_alone_and_among_others(beam: int) -> None:
    model, pictures = decisive(), some_pictures(6)
    together = caption(model, pictures, max_length=LENGTH, beam=beam)
    for n in range(6):
        assert torch.equal(caption(model, pictures[n : n + 1], max_length=LENGTH, beam=beam)[0], together[n])


def test_nothing_special_is_ever_said_and_nothing_follows_the_end() -> None:
    model, pictures = decisive(), some_pictures(20)
    for words in caption(model, pictures, max_length=LENGTH, beam=3).tolist():
        said = words[: words.index(END)] if END in words else words
        assert set(said) <= {4, 5}
        assert set(words[len(said) + 1 :]) <= {PAD}


def test_without_a_penalty_for_length_the_most_probable_caption_wins() -> None:
    model, picture = decisive(), some_pictures(1)
    with torch.no_grad():
        best = max(every_caption(), key=lambda said: chance(model, picture[0], said))
    found = caption(model, picture, max_length=LENGTH, beam=16, length_penalty=0.0)[0].tolist()
    assert [word for word in found if word != PAD] == best


@torch.no_grad()
@pytest.mark.parametrize("decoder", sorted(DECODERS))
@pytest.mark.parametrize("beam", [1, 3])
def test_how_sure_it_is_belongs_to_what_is_said(decoder: str, beam: int) -> None:
    model, pictures = decisive(decoder), some_pictures(4)
    found = describe(model, pictures, max_length=LENGTH, beam=beam)
    for picture, words, sure in zip(pictures, found.words.tolist(), found.log_probability.tolist(), strict=True):
        assert sure == pytest.approx(chance(model, picture, [word for word in words if word != PAD]), abs=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("decoder", ["attention", "glimpse", "transformer"])
def test_where_it_looked_belongs_to_what_is_said(decoder: str) -> None:
    """Whatever a beam search dropped and doubled on the way."""
    model, pictures = decisive(decoder), some_pictures(5)
    found = describe(model, pictures, max_length=LENGTH, beam=3)
    assert found.looks is not None
    for n, words in enumerate(found.words.tolist()):
        state = model.decoder.start(model.see(pictures[n : n + 1]), rows=1)
        for step, word in enumerate([START, *words][:LENGTH]):
            if words[step] == PAD:
                assert not found.looks[n, step].any()
                continue
            _, state = model.decoder(torch.tensor([[word]]), state)
            torch.testing.assert_close(found.looks[n, step], state.looks[0], atol=1e-4, rtol=1e-3)


def test_samples_come_as_often_as_they_are_probable() -> None:
    model, picture = decisive(), some_pictures(1)
    found = sample(model, picture, max_length=LENGTH, samples=4000, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        start = chance(model, picture[0], [END])
    assert float((found.words[:, 0] == END).float().mean()) == pytest.approx(float(torch.tensor(start).exp()), abs=0.03)
    cold = sample(model, picture, max_length=LENGTH, samples=5, temperature=1e-4)
    assert torch.equal(cold.words, caption(model, picture, max_length=LENGTH).expand(5, -1))
