"""HTML pages from jinja2 templates, which are package data."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def render(package: str, template: str, /, **values: Any) -> str:
    """Render a template of `package`/templates. Every value is escaped; a value that is missing raises UndefinedError.

    Templates mark only text from `svg_chart.chart`, which escapes its own, as safe.
    """
    return _environment(package).get_template(template).render(values)


@cache
def _environment(package: str) -> Environment:
    # Imported on use: no verb that prints text alone pays for it.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader(package, "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
