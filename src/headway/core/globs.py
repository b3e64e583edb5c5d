"""Match paths against patterns as in .gitignore: `*.pt` at any depth, `models/` and `models/**` with all below."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache


def matches_any(path: str, patterns: Iterable[str]) -> bool:
    """Return whether a relative path with forward slashes matches one of the patterns."""
    return any(_compiled(pattern).fullmatch(path) is not None for pattern in patterns)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    text = pattern.removeprefix("./")
    anchored = "/" in text.rstrip("/")
    text = text.strip("/")
    parts = [_part(part) for part in re.split(r"(\*\*/|/\*\*$|\*\*|\*|\?|\[[^]/]+\])", text)]
    # A folder's pattern covers everything below it.
    return re.compile(("" if anchored else r"(?:.*/)?") + "".join(parts) + r"(?:/.*)?")


def _part(part: str) -> str:
    special = {"**/": r"(?:.*/)?", "/**": r"(?:/.*)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    if part in special:
        return special[part]
    if part.startswith("[") and part.endswith("]"):
        return "[" + ("^" if part[1] in "!^" else "") + re.escape(part[1:-1].lstrip("!^")).replace(r"\-", "-") + "]"
    return re.escape(part)
