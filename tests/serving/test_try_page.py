"""The try-out page in a real browser: ask by mouse and by keyboard, and see what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headway.artifacts.predictor import Answer
from headway.serving.inputs import Limits
from tests.serving.conftest import Brightness, png

Served = Callable[..., Any]


def test_a_picture_is_asked_about_as_soon_as_it_is_there(page: Any, served: Served) -> None:
    with served() as client:
        page.set_viewport_size({"width": 360, "height": 700})
        page.goto(str(client.base_url))
        assert page.get_by_role("button", name="Run").is_disabled()
        page.set_input_files("input[type=file]", {"name": "a.png", "mimeType": "image/png", "buffer": png(77)})
        page.locator("#answer .said", has_text="77").wait_for()
        page.get_by_label("a remark").fill("so dark")
        page.keyboard.press("Enter")
        page.locator("#answer .said", has_text="so dark").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_what_is_no_picture_is_said_and_the_next_one_works(page: Any, served: Served, tmp_path: Path) -> None:
    with served() as client:
        page.goto(str(client.base_url))
        page.set_input_files("input[type=file]", {"name": "a.png", "mimeType": "image/png", "buffer": b"no picture"})
        page.locator("#state.wrong", has_text="not an image").wait_for()
        page.set_input_files("input[type=file]", {"name": "b.png", "mimeType": "image/png", "buffer": png(9)})
        page.locator("#answer .said", has_text="9").wait_for()
        assert page.locator("#state").inner_text() == ""


def test_a_model_that_fails_is_said(page: Any, served: Served, model: Brightness) -> None:
    with served(limits=Limits(seconds=20)) as client:
        page.goto(str(client.base_url))
        page.get_by_label("a remark").fill("fail")
        page.set_input_files("input[type=file]", {"name": "a.png", "mimeType": "image/png", "buffer": png(1)})
        page.locator("#state.wrong", has_text="the model failed").wait_for()


EVERYTHING: Answer = {
    "text": "a small brown dog",
    "words": [{"word": word, "attention": [[0.1, 0.2], [0.3, at]]} for at, word in enumerate(["a", "small", "dog"])],
    "alternatives": [
        {"text": "a small brown dog", "probability": 0.2},
        {"text": "a dog that runs over a meadow which is as long as this sentence", "probability": 0.0001},
    ],
    "top": [{"label": "Corn_maize___Northern_Leaf_Blight_and_more", "probability": 0.7}],
    "saliency": [[0.0, 0.1], [0.2, 0.3]],
    "distribution": {"1": 0.25, "2": 0.75},
    "evidence": {"back: edge damage": 0.2, "back: off centre, down": 0.4, "front: edge damage": 0.9},
    "source": [f"word{number}" for number in range(30)],
    "target": ["Wort", "Satz"],
    "attention": [[1 / 30] * 30, [0.5] + [0.5 / 29] * 29],
}


def explained(model: Brightness) -> None:
    """Whatever any recipe's explanation may hold, all at once."""

    def answer(prepared: Sequence[Any], *, explain: bool) -> list[Answer]:
        return [EVERYTHING for _ in prepared]

    model.answer = answer  # type: ignore[method-assign]


def test_an_explanation_is_shown_as_what_it_is(page: Any, served: Served, model: Brightness) -> None:
    explained(model)
    with served() as client:
        page.set_viewport_size({"width": 360, "height": 700})
        page.goto(str(client.base_url))
        page.set_input_files("input[type=file]", {"name": "a.png", "mimeType": "image/png", "buffer": png(50, side=64)})
        page.locator("#answer .said", has_text="a small brown dog").wait_for()
        headings = page.locator("#answer h2").all_inner_texts()
        assert headings == [
            "Where it looked",
            "Classes",
            "Grades",
            "What was seen, from 0 to 1",
            "Which words it looked at",
            "What the search considered",
        ]
        page.keyboard.press("Tab")  # from the picture to the button, to the words
        page.get_by_role("button", name="dog").focus()
        assert page.get_by_role("button", name="dog").get_attribute("aria-pressed") == "true"
        heat = "[...document.querySelector('.seen canvas').getContext('2d').getImageData(1, 1, 1, 1).data]"
        assert page.evaluate(heat)[3] > 100, "the last cell is where it looked for this word"
        assert page.locator("table.matrix td[title^='Satz ← word0: 50']").count() == 1
        assert page.locator(".bars .chosen").inner_text() == "a small brown dog"
        assert page.get_by_text("< 0.1 %").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, "only the table scrolls, in its own box"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_the_pages(page: Any, served: Served, model: Brightness, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    explained(model)
    page.emulate_media(color_scheme=scheme)
    with served() as client:
        page.goto(f"{client.base_url}/docs")
        assert _barriers(axe.run(page)) == []
        page.goto(str(client.base_url))
        page.get_by_role("button", name="Run").wait_for()
        assert _barriers(axe.run(page)) == []
        page.set_input_files("input[type=file]", {"name": "a.png", "mimeType": "image/png", "buffer": b"no"})
        page.locator("#state.wrong").wait_for()
        assert _barriers(axe.run(page)) == []
        page.set_input_files("input[type=file]", {"name": "b.png", "mimeType": "image/png", "buffer": png(50)})
        page.locator("#answer .said").wait_for()
        assert _barriers(axe.run(page)) == []


def _barriers(found: Any) -> list[str]:
    """What axe calls serious or critical, with where it is."""
    assert len(found.response["passes"]) > 10, "it has looked"
    return [
        f"{each['id']}: {node['html']} {node['failureSummary']}"
        for each in found.response["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
