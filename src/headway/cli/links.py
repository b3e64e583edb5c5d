"""Where a run can be looked at in a browser: its target's pages, and its tracker's."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.launcher import Launched

_TRACKED = re.compile(r"wandb\b.*?(https?://\S+)")  # what rank 0 says when its tracker is up
_FIRST_LINES = 500  # it is said early


def links(launched: Launched) -> dict[str, str]:
    """By name; empty where nothing has a page. Nothing is asked over a network but the run's folder."""
    own = getattr(launched.target, "links", None)
    found: dict[str, str] = dict(own(launched.handle)) if own is not None else {}
    if "console" in launched.handle.details:
        found["console"] = str(launched.handle.details["console"])
    return {**found, **_tracker(launched)}


def _tracker(launched: Launched) -> dict[str, str]:
    """W&B's page of this run, as soon as its tracker has said where it is."""
    try:
        if "wandb" not in launched.folder.plan().job.get("log_to", ()):
            return {}
        for line in islice(launched.folder.log_lines(rank=0), _FIRST_LINES):
            seen = _TRACKED.search(line.text)
            if seen:
                return {"wandb": seen[1]}
    except HeadwayError:  # out of reach: a link is a nicety
        pass
    return {}


def lines(launched: Launched) -> str:
    """As `run` prints them; empty where nothing has a page."""
    return "".join(f"\n{name}: {url}" for name, url in links(launched).items())
