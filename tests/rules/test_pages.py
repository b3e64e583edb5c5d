"""HTML comes from templates in the package: all of them compile, and values are escaped."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from jinja2 import Environment, FileSystemLoader, UndefinedError

from headway.core.html import render

SOURCE = Path(__file__).parents[2] / "src" / "headway"
PAGES = sorted(path for path in SOURCE.rglob("*.html") if path.parent.name == "templates")
DRAWS = "artifacts/svg_chart.py"  # SVG, which escapes its own text


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_template_compiles(path: Path) -> None:
    Environment(loader=FileSystemLoader(path.parent), autoescape=True).get_template(path.name)


def test_no_module_builds_html_from_strings() -> None:
    tag = re.compile(r"""["'](<!doctype|</?(html|table|tr|td|th|div|h[1-6]|figure|section|main)[ >{])""")
    built = [path for path in SOURCE.rglob("*.py") if tag.search(path.read_text(encoding="utf-8"))]
    assert [str(path.relative_to(SOURCE)) for path in built if not path.match(DRAWS)] == []


def test_values_are_escaped_in_text_and_attributes() -> None:
    operation = {
        "summary": '"><img>',
        "requestBody": {"content": {"a/b": {"schema": {"description": "</pre><script>"}}}},
        "responses": {"200": {"description": "<b>"}},
    }
    page = render("headway.serving", "openapi.html", info={"title": "<i>"}, paths={"/": {"get": operation}}, json=str)
    for tag in ("<script>", "<img>", "</b> <b>", "<i>"):
        assert tag not in page
    assert "&lt;script&gt;" in page


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="info"):
        render("headway.serving", "openapi.html", paths={}, json=str)


def test_a_verb_that_writes_no_page_does_not_import_jinja2() -> None:
    code = "import sys, headway.cli.inspect, headway.cli.data; print('jinja2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
