"""The captioner: one answer a word, whole captions at once or word by word, one picture or many."""

from __future__ import annotations

import pytest
import torch

from headway import backbones
from headway.core.errors import BadInput
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.model import DECODERS, Captioner, rebuild
from headway.recipes.captioning.vocabulary import PAD, SPECIAL, START, UNKNOWN, Vocabulary
from tests.recipes.folders import TINY

WORDS = Vocabulary([*SPECIAL, "a", "red", "blue", "star", "ring"])
ALL = pytest.mark.parametrize("decoder", sorted(DECODERS))


def captioner(decoder: str = "glimpse", words: Vocabulary = WORDS, **settings: object) -> Captioner:
    torch.manual_seed(5)
    return Captioner(Config(**{**TINY, "decoder": decoder, **settings}), words)


def some_pictures(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, 32, 32), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def test_the_names_in_the_config_are_those_of_the_registries() -> None:
    from typing import get_args, get_type_hints

    hints = get_type_hints(Config)
    assert sorted(get_args(hints["encoder"])) == sorted(("cnn", *backbones.NAMES))
    assert sorted(get_args(hints["decoder"])) == list(DECODERS)


@ALL
def test_word_by_word_gives_the_scores_of_the_whole_caption(decoder: str) -> None:
    model = captioner(decoder).eval()
    words = torch.tensor([[START, 4, 5, 7], [START, 4, 6, 8]])
    grid = model.encoder(some_pictures(2))
    at_once, _ = model.decoder(words, model.decoder.start(grid, rows=2))
    memory = model.decoder.start(grid, rows=2)
    for step in range(4):
        scores, memory = model.decoder(words[:, step : step + 1], memory)
        torch.testing.assert_close(scores[:, 0], at_once[:, step])


CAPTIONS = torch.tensor(
    [
        [[START, 4, 2, PAD, PAD, PAD], [START, 5, 6, 7, 8, 2], [START, 8, 8, 2, PAD, PAD]],
        [[START, 7, 7, 7, 2, PAD], [START, 6, 2, PAD, PAD, PAD], [START, 4, 5, 2, PAD, PAD]],
    ]
)


@pytest.mark.parametrize(
    "settings",
    [
        {"decoder": "attention", "cell": "gru", "layers": 3},
        {"decoder": "attention", "layers": 2, "tied": True, "embedding_size": 24},
        {"decoder": "glimpse"},
        {"decoder": "lstm", "tied": True},
        {"decoder": "transformer", "layers": 2, "tied": True},
    ],
)
def test_what_is_learnt_is_what_is_said_word_by_word(settings: dict[str, object]) -> None:
    """However a decoder packs the captions of a batch, each word's scores are those of a caption read alone."""
    model = captioner(**settings).eval()  # type: ignore[arg-type]
    grid = model.see(some_pictures(2))
    lesson = model.decoder.learn(grid, CAPTIONS)
    told = sorted(zip(lesson.targets.tolist(), lesson.scores.tolist(), strict=True))
    wanted: list[tuple[int, list[float]]] = []
    for picture, captions in zip(grid, CAPTIONS, strict=True):
        for words in captions:
            said = words[words != PAD]
            scores, _ = model.decoder(said[None, :-1], model.decoder.start(picture[None], rows=1))
            wanted += zip(said[1:].tolist(), scores[0].tolist(), strict=True)
    wanted.sort()
    assert [target for target, _ in told] == [target for target, _ in wanted]
    torch.testing.assert_close(
        torch.tensor([scores for _, scores in told]).sort(dim=0).values,
        torch.tensor([scores for _, scores in wanted]).sort(dim=0).values,
        atol=1e-5,
        rtol=1e-4,
    )


def test_overlooking_a_place_costs_an_attention_decoder() -> None:
    """λ Σ_i (1 - Σ_t α_ti)², added up over cells and captions."""
    free, dear = (captioner("attention", doubly_stochastic=value).eval() for value in (0.0, 2.0))
    captions = torch.tensor([[[START, 4, 5, 2]], [[START, 6, 2, PAD]]])
    pictures = some_pictures(2)
    covered = torch.zeros(2, 16)
    for n, words in enumerate(([START, 4, 5], [START, 6])):
        state = free.decoder.start(free.see(pictures[n : n + 1]), rows=1)
        for word in words:
            _, state = free.decoder(torch.tensor([[word]]), state)
            assert float(state.looks.detach().sum()) == pytest.approx(1.0)
            covered[n] += state.looks[0]
    extra = dear(pictures, captions)[0] - free(pictures, captions)[0]
    torch.testing.assert_close(extra, 2.0 * ((1 - covered) ** 2).sum())


def test_with_less_teacher_forcing_a_decoder_learns_from_its_own_words() -> None:
    model = captioner("attention", word_dropout=0.0).train()
    pictures = some_pictures(2)
    forced = model(pictures, CAPTIONS)[0]
    torch.testing.assert_close(model(pictures, CAPTIONS)[0], forced)
    model.decoder.own_words = 1.0
    assert not torch.isclose(model(pictures, CAPTIONS)[0], forced)


def test_tied_embeddings_are_kept_once() -> None:
    tied, untied = (captioner("transformer", tied=value) for value in (True, False))
    assert "decoder.score.weight" not in tied.state_dict()
    assert "decoder.score.weight" in untied.state_dict()


@ALL
def test_captions_of_one_picture_share_it_and_do_not_mix_with_those_of_others(decoder: str) -> None:
    model = captioner(decoder).eval()
    pictures = some_pictures(3)
    words = torch.tensor([[START, 4, 5], [START, 6, 7]])
    together, _ = model.decoder(words.repeat(3, 1), model.decoder.start(model.encoder(pictures), rows=6))
    for n in range(3):
        alone, _ = model.decoder(words, model.decoder.start(model.encoder(pictures[n : n + 1]), rows=2))
        torch.testing.assert_close(together[2 * n : 2 * n + 2], alone)


@ALL
def test_the_loss_is_a_sum_over_words_and_padding_counts_nothing(decoder: str) -> None:
    model = captioner(decoder).eval()
    pictures, captions = some_pictures(2), torch.tensor([[[START, 4, 5, 2]], [[START, 6, 2, PAD]]])
    loss, count = model(pictures, captions)
    assert int(count) == 5
    parts = [model(pictures[:1], captions[:1])[0], model(pictures[1:], captions[1:, :, :3])[0]]
    torch.testing.assert_close(loss, parts[0] + parts[1])


@ALL
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
    hidden = model.decoder._drop_words(words)
    assert (hidden[:, 0] == START).all()
    assert 0.3 < (hidden[:, 1:] == UNKNOWN).float().mean() < 0.7
    assert torch.equal(model.eval().decoder._drop_words(words), words)


def test_its_state_holds_its_words_so_that_it_can_be_rebuilt() -> None:
    model = captioner()
    again = rebuild(Config(**TINY), model.state_dict())
    assert again.vocabulary.words == WORDS.words
    assert torch.equal(again.eval().encoder(some_pictures(1)), model.eval().encoder(some_pictures(1)))


def test_weights_are_not_put_under_other_words() -> None:
    other = Vocabulary([*SPECIAL, "a", "red", "blue", "ring", "star"])
    with pytest.raises(BadInput, match="9 words"):
        captioner(words=other).load_state_dict(captioner().state_dict())
