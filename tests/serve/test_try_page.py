"""The try-out page in a real browser: ask by mouse and by keyboard, and see what went wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.serve.limits import Limits
from tests.serve.conftest import Brightness, png

Served = Callable[..., Any]


def test_a_picture_is_asked_about_as_soon_as_it_is_there(page: Any, served: Served) -> None:
    with served() as client:
        page.set_viewport_size({"width": 360, "height": 700})
        page.goto(str(client.base_url))
        assert page.get_by_role("button", name="Ask").is_disabled()
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
        page.locator("#state.wrong", has_text="not a picture").wait_for()
        page.set_input_files("input[type=file]", {"name": "b.png", "mimeType": "image/png", "buffer": png(9)})
        page.locator("#answer .said", has_text="9").wait_for()
        assert page.locator("#state").inner_text() == ""


def test_a_model_that_fails_is_said(page: Any, served: Served, model: Brightness) -> None:
    with served(limits=Limits(seconds=20)) as client:
        page.goto(str(client.base_url))
        page.get_by_label("a remark").fill("fail")
        page.set_input_files("input[type=file]", {"name": "a.png", "mimeType": "image/png", "buffer": png(1)})
        page.locator("#state.wrong", has_text="the model failed").wait_for()
