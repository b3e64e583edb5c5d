"""A real browser for tests of pages; without one, the tests that want it are skipped by name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    found = os.environ.get("HEADWAY_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that must neither fail in a script nor ask anybody but the server on this machine."""
    page = browser.new_page(viewport={"width": 1100, "height": 800})
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: None if _ours(request.url) else wrong.append(request.url))
    yield page
    page.close()
    assert wrong == []


def _ours(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "blob:", "data:"))


def serious(page: Any) -> list[str]:
    """What axe-core finds on this page that keeps people from using it, one line each."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {node['html'][:200]}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
