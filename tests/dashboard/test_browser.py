"""The pages in a real browser: what a person sees, by mouse and by keyboard, wide and narrow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headway.dashboard.runs import run_id
from tests.browsing import serious
from tests.dashboard.conftest import PICTURE, write_checkpoint, write_curve, write_sample

Served = Callable[..., Any]


def test_runs_are_found_compared_and_opened(page: Any, served: Served, runs: list[str]) -> None:
    with served() as client:
        page.goto(str(client.base_url))
        page.get_by_role("link", name="first", exact=True).wait_for()
        page.get_by_label("Choose first").check()
        page.get_by_label("Choose second").check()
        page.get_by_role("button", name="Compare 2").click()
        page.get_by_role("rowheader", name="env.WHICH").wait_for()
        page.locator(".chart canvas").first.wait_for()
        page.go_back()
        page.get_by_label("Search runs").fill("second")
        page.get_by_role("link", name="first", exact=True).wait_for(state="detached")
        page.get_by_role("link", name="second", exact=True).click()
        page.get_by_role("heading", name="second").wait_for()


def test_a_run_goes_on_before_ones_eyes(page: Any, served: Served, runs: list[str]) -> None:
    with served() as client:
        page.goto(f"{client.base_url}#/run/{run_id(runs[0])}")
        page.locator(".chart canvas").first.wait_for()
        page.get_by_text("needle in the log").wait_for()
        assert page.locator(".logs b").count() == 0, "what a run prints is text, not markup"
        write_curve(runs[0], [0.125], first=201, attempt=3)
        page.locator(".tile", has_text="loss").get_by_text("0.125").wait_for()


def ask_to_stop(page: Any, address: object, run: str) -> None:
    """On the page of a run that looks as if it were still running."""
    page.route("**/api/runs/*", lambda route: route.fulfill(json={**route.fetch().json(), "state": "running"}))
    page.route("**/live", lambda route: route.abort())
    page.goto(f"{address}#/run/{run_id(run)}")
    page.get_by_role("button", name="Stop").click()


def test_stopping_asks_first(page: Any, served: Served, runs: list[str], acted: list[tuple[str, str]]) -> None:
    with served() as client:
        ask_to_stop(page, client.base_url, runs[0])
        page.get_by_role("button", name="Cancel").click()
        page.wait_for_timeout(100)
        assert acted == []
        page.get_by_role("button", name="Stop").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.get_by_text("first is stopped").wait_for()
    assert acted == [("stop", runs[0])]


def test_a_phone_shows_it_without_scrolling_sideways(page: Any, served: Served, runs: list[str]) -> None:
    page.set_viewport_size({"width": 360, "height": 700})
    with served() as client:
        for path in ("", f"#/run/{run_id(runs[0])}", f"#/compare/{run_id(runs[0])},{run_id(runs[1])}"):
            page.goto(f"{client.base_url}{path}")
            page.wait_for_timeout(300)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, path


def test_trouble_is_said_on_the_page(page: Any, served: Served, runs: list[str]) -> None:
    with served() as client:
        page.goto(f"{client.base_url}#/run/0000000000000000")
        page.get_by_text("no such run").first.wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1100, 360])
def test_everybody_can_use_every_page(page: Any, served: Served, runs: list[str], scheme: str, width: int) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 700})
    write_sample(runs[0], 10, "answer.txt", b"a text")
    first, second = map(run_id, runs)
    with served() as client:
        for path, shown in (("", ".finished"), (f"#/run/{first}", ".chart canvas"), (f"#/run/{first}", ".pictures pre"),
                            (f"#/compare/{first},{second}", ".chart canvas"), ("#/run/0", "#state.wrong")):  # fmt: skip
            page.goto("about:blank")
            page.goto(f"{client.base_url}{path}")
            page.locator(shown).first.wait_for()
            assert serious(page) == [], path


def test_the_question_before_a_stop_can_be_read_by_everybody(page: Any, served: Served, runs: list[str]) -> None:
    with served() as client:
        ask_to_stop(page, client.base_url, runs[0])
        page.get_by_role("button", name="Cancel").wait_for()
        assert serious(page) == []


def test_samples_are_looked_through_by_step(page: Any, served: Served, runs: list[str]) -> None:
    for step in (10, 20, 30):
        write_sample(runs[1], step, "picture.png", PICTURE)
        write_sample(runs[1], step, "said.txt", f"<i>at {step}</i>".encode())
    with served() as client:
        page.goto(f"{client.base_url}#/run/{run_id(runs[1])}")
        page.get_by_text("<i>at 30</i>").wait_for()
        page.get_by_label("step", exact=True).focus()
        page.keyboard.press("ArrowLeft")
        page.get_by_text("<i>at 20</i>").wait_for()
        eventually(page, lambda: page.evaluate("document.querySelector('.pictures img').naturalWidth === 1"))


def test_a_checkpoint_is_verified_on_request(page: Any, served: Served, runs: list[str]) -> None:
    body = write_checkpoint(runs[1], 7)
    with served() as client:
        page.goto(f"{client.base_url}#/run/{run_id(runs[1])}")
        page.get_by_label("Verify the checkpoint of step 7").click()
        page.get_by_text("intact, read in").first.wait_for()
        body.write_bytes(b"other weights")
        page.reload()
        page.get_by_label("Verify the checkpoint of step 7").click()
        page.get_by_text("its checksum differs").first.wait_for()


def eventually(page: Any, condition: Callable[[], bool]) -> None:
    for _ in range(300):
        if condition():
            return
        page.wait_for_timeout(100)
    raise AssertionError("in vain")


def test_steps_are_zoomed_into_by_keyboard(page: Any, served: Served, runs: list[str]) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with served() as client:
        page.goto(f"{client.base_url}#/run/{run_id(runs[1])}")
        page.locator(".chart canvas").first.wait_for()
        page.get_by_label("from step").fill("50")
        page.get_by_label("to step").fill("60")
        page.keyboard.press("Enter")
        # Asked from here: the page's Content-Security-Policy forbids the eval that wait_for_function polls with.
        eventually(page, lambda: any("low=50&high=60" in url for url in asked))
        page.get_by_label("logarithmic").check()
        page.get_by_role("button", name="All steps").click()
        page.wait_for_timeout(200)
    assert "low" not in [url for url in asked if "/metrics" in url][-1]
