"""The pages in a real browser: what a person sees, by mouse and by keyboard, wide and narrow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headway.ui.board import run_id
from tests.ui.conftest import write_curve

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


def test_stopping_asks_first(page: Any, served: Served, runs: list[str], acted: list[tuple[str, str]]) -> None:
    with served() as client:
        page.route("**/api/runs/*", lambda route: route.fulfill(json={**route.fetch().json(), "state": "running"}))
        page.route("**/live", lambda route: route.abort())
        page.goto(f"{client.base_url}#/run/{run_id(runs[0])}")
        page.get_by_role("button", name="Stop").click()
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
        page.get_by_text("no such run is listed here").first.wait_for()
