"""One thing that `headway doctor` found: what works, what is worth knowing, what does not and what to type."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    mark: str  # ok, note, bad
    what: str
    fix: str = ""
