"""Split a global batch over ranks: which items each rank gets, and a padding batch for a rank that gets none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Filler:
    """A stand-in for an empty part: it runs through the model so that ranks keep step, and counts as nothing."""

    batch: Any


def share(size: int, part: int, parts: int) -> tuple[int, int]:
    """[start, stop) of one part: parts differ by at most one, and together are everything."""
    small, extra = divmod(size, parts)
    start = part * small + min(part, extra)
    return start, start + small + (part < extra)
