"""Did you mean …? Costs an import of difflib, only when something was mistyped."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 60  # nobody mistypes more: comparing is quadratic in the length


def closest(typed: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, if any."""
    if len(typed) > LONGEST:
        return None
    from difflib import get_close_matches

    by_letters = {_letters(name): name for name in known}
    near = get_close_matches(_letters(typed), by_letters, n=1, cutoff=0.6)
    return by_letters[near[0]] if near else None


def _letters(name: str) -> str:
    """Case, dashes and underscores are what is confused most."""
    return name.lower().replace("-", "").replace("_", "")
