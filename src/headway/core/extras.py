"""Optional parts of Headway: what to type when one is missing.

The command names the packages, never `headway` itself: an index may hold another project by that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from headway.core.errors import MissingExtra


def install_command(extra: str) -> str:
    """The pip command that brings the packages of `extra`, as this Headway's own metadata lists them."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        listed = requires("headway") or []
    except PackageNotFoundError:  # run from a source tree that was never installed
        listed = []
    marker = re.compile(rf"""extra\s*==\s*['"]{re.escape(extra)}['"]""")
    names = [line.partition(";")[0].strip() for line in listed if marker.search(line)]
    quoted = " ".join(f"'{name}'" for name in names)
    return f"pip install {quoted}" if names else f"install Headway again with its extra [{extra}]"


@contextmanager
def needs(extra: str, verb: str) -> Iterator[None]:
    """Around the imports of a verb: a missing package becomes the pip command that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "headway":
            raise  # our own bug, not something to install
        raise MissingExtra(extra, needed_for=f"headway {verb}", lacking=error.name or "a package") from None
