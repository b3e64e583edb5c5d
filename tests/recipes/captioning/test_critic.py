"""Self-critical training: captions are judged by CIDEr; what is better than its picture's others becomes likelier."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from headway.recipes.captioning.beam_search import caption, sample
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.data import Batch, Sources, TrainingFeed, load, vocabulary
from headway.recipes.captioning.model import DECODERS, Captioner
from headway.recipes.captioning.train import SelfCriticalLoss, advantages
from headway.recipes.captioning.vocabulary import PAD, START, UNKNOWN
from headway.spec.model import Data
from tests.recipes.folders import TINY


def made(**settings: Any) -> tuple[Captioner, TrainingFeed, SelfCriticalLoss]:
    cfg = Config(**{**TINY, "train_samples": 8, "batch_size": 4, "word_dropout": 0.0, **settings})
    pictures = load(cfg, Data(), "train")
    words = vocabulary(cfg, pictures)
    torch.manual_seed(0)
    model = Captioner(cfg, words)
    return model, TrainingFeed(cfg, Sources(pictures), words, seed=1), SelfCriticalLoss(cfg, Sources(pictures))


def test_a_caption_is_judged_against_its_pictures_others() -> None:
    found = advantages(torch.tensor([3.0, 1.0, 2.0, 5.0, 5.0, 5.0]), 3)
    assert found.tolist() == [1.5, -1.5, 0.0, 0.0, 0.0, 0.0]


def test_a_reference_is_worth_more_than_one_of_another_picture_or_one_that_breaks_off() -> None:
    model, feed, critic = made()
    (pictures,) = feed.sources.pictures
    own, other = pictures.references[0][0], pictures.references[3][0]
    said = [own, other, " ".join(own.split()[:-2])]
    numbers = torch.zeros(3, 24, dtype=torch.int64)
    for row, text in zip(numbers, said, strict=True):
        encoded = torch.tensor(model.vocabulary.encode(text, max_length=20)[1:])
        row[: len(encoded)] = encoded
    worth = critic.rewards(model, numbers, torch.zeros(3, dtype=torch.int64)).tolist()
    assert worth[0] > max(worth[1:])


def test_bleu_counts_as_often_as_asked() -> None:
    model, feed, critic = made()
    other = made(self_critical_bleu=3.0)[2]
    (pictures,) = feed.sources.pictures
    said = torch.zeros(2, 24, dtype=torch.int64)
    for row, number in zip(said, (0, 3), strict=True):
        encoded = torch.tensor(model.vocabulary.encode(pictures.references[number][0], max_length=20)[1:])
        row[: len(encoded)] = encoded
    rows = torch.zeros(2, dtype=torch.int64)
    more = other.rewards(model, said, rows) - critic.rewards(model, said, rows)
    assert more[0].item() == pytest.approx(3.0, abs=1e-5)
    assert 0 <= more[1].item() < 3.0


def test_a_caption_that_does_not_end_is_worth_less() -> None:
    model, feed, critic = made()
    (pictures,) = feed.sources.pictures
    ended = torch.tensor(model.vocabulary.encode(pictures.references[0][0], max_length=20)[1:])
    endless = torch.cat([ended[:-1], torch.zeros(1, dtype=torch.int64)])
    worth = critic.rewards(model, torch.stack([ended, endless]), torch.zeros(2, dtype=torch.int64)).tolist()
    assert worth[0] > worth[1]


@pytest.mark.parametrize("decoder", sorted(DECODERS))
def test_a_step_makes_better_captions_likelier_and_worse_ones_less_likely(decoder: str) -> None:
    model, feed, critic = made(decoder=decoder)
    batch = feed.batch(0, 0, 0, 1)
    assert isinstance(batch, Batch)
    torch.manual_seed(5)
    said = sample(
        model.eval(), batch.pictures, max_length=20, samples=5, temperature=Config().self_critical_temperature
    ).words
    worth = advantages(critic.rewards(model, said, batch.rows.repeat_interleave(5)), 5)
    before = log_probabilities(model, batch.pictures, said)

    torch.manual_seed(5)
    loss, count, _ = critic.loss(model, batch)
    assert loss.item() == pytest.approx(-(worth * before).sum().item(), rel=1e-3)
    assert count == (said != PAD).sum()
    torch.autograd.backward(loss)
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            if parameter.grad is not None:
                parameter.sub_(0.01 * parameter.grad)
    change = log_probabilities(model, batch.pictures, said) - before
    assert (worth * change).sum() > 0


@torch.no_grad()
def log_probabilities(model: Captioner, pictures: Tensor, said: Tensor) -> Tensor:
    """Of captions that are given, word by word, at the temperature at which they are drawn."""
    state = model.decoder.start(model.see(pictures), rows=len(said))
    word, total = torch.full((len(said),), START), torch.zeros(len(said))
    for following in said.unbind(dim=1):
        scores, state = model.decoder(word[:, None], state)
        scores[:, 0, [PAD, START, UNKNOWN]] = float("-inf")
        gains = (
            (scores[:, 0] / Config().self_critical_temperature).log_softmax(dim=1).gather(1, following[:, None])[:, 0]
        )
        total += torch.where(following == PAD, 0.0, gains)
        word = following
    return total


@pytest.mark.slow
def test_the_cider_of_drawn_scenes_does_not_fall_and_that_of_what_is_drawn_by_chance_rises() -> None:
    model, feed, critic = made(train_samples=48, batch_size=16, width=16, embedding_size=32, hidden_size=64, captions=5)
    batches = [batch for step in range(len(feed)) if isinstance(batch := feed.batch(0, step, 0, 1), Batch)]

    def said_surely() -> float:
        found = [critic.rewards(model, caption(model, one.pictures, max_length=20), one.rows) for one in batches]
        return torch.cat(found).mean().item()

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for number in range(150):
        batch = batches[number % 3]
        loss, count = model(batch.pictures, batch.captions)
        step(model, optimizer, loss / count)
    before, rewards = said_surely(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
    for number in range(60):
        torch.manual_seed(number)
        loss, count, reward = critic.loss(model, batches[number % 3])
        step(model, optimizer, loss / count)
        rewards.append(reward.item())
    assert said_surely() >= before
    assert sum(rewards[-20:]) > sum(rewards[:20])


def step(model: Captioner, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
