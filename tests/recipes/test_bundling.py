"""Every recipe's bundle has a model card with what the model is, its scores, how to use it, its limits and licence."""

from __future__ import annotations

import pytest
from torch import nn

from headway.recipes.bundling import CardText, bundle_parts
from headway.spec import Job
from headway.spec.model import Data, Source

TEXT = CardText(
    summary="Adds numbers.",
    example="1,2",
    generated=("builtin:numbers", "The numbers are"),
    files={"digits.json": "the digits"},
    inputs="Numbers are rounded.",
    limits="It cannot multiply.",
)


class Tied(nn.Module):
    """Two layers that share one weight, as embeddings and output layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight


def card(job: Job, scores: dict[str, float]) -> str:
    parts = bundle_parts(Tied(), {"width": 2}, job, scores, recipe="sums", files={"digits.json": b"[]"}, text=TEXT)
    return parts.card


def test_the_card_has_all_sections_and_names_every_file() -> None:
    written = card(Job(name="sums", recipe="captioning", seed=3), {"bleu": 0.5, "accuracy": 0.25})
    headings = [line for line in written.splitlines() if line.startswith("#")]
    assert headings == ["# sums", "## Use", "## Limits", "## Licence"]
    assert "| accuracy | 0.2500 |\n| bleu | 0.5000 |" in written
    assert "    headway predict PATH_OF_THIS_FOLDER 1,2\n" in written
    assert "`builtin:numbers`, seed 3" in written
    assert "4 weights" in written
    for name in ("model.safetensors", "config.json", "digits.json", "bundle.json"):
        assert f"`{name}`: " in written
    assert max(map(len, written.splitlines())) <= 120


@pytest.mark.parametrize(
    ("source", "words"), [("builtin:numbers", "no rights"), ("gs://b/x", "as far as the licences")]
)
def test_the_licence_depends_on_the_training_data(source: str, words: str) -> None:
    job = Job(name="sums", recipe="captioning", data=Data(train=(Source(source=source),)))
    assert words in card(job, {})
    assert "not validated" in card(job, {})


def test_tied_weights_are_copied_so_that_they_can_be_written() -> None:
    job = Job(name="sums", recipe="captioning")
    parts = bundle_parts(Tied(), {}, job, {}, recipe="sums", files={}, text=TEXT)
    first, second = parts.weights["first.weight"], parts.weights["second.weight"]
    assert first.equal(second)
    assert first.data_ptr() != second.data_ptr()
