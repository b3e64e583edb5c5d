"""The three ways in which a run resumes, and the words for them. A plan records one of them as `resume`."""

from __future__ import annotations

from typing import Final

EXACT: Final = "exact"  # a recipe, or a script that uses headway.start(): to the bit, from the newest checkpoint
BY_SCRIPT: Final = "script"  # its sources load earlier state: its files are restored, the rest is up to the script
BEGINNING: Final = "beginning"  # nothing in its sources loads earlier state
UNKNOWN: Final = ""  # the plan is of a Headway that did not look

_PLAN: Final = {
    EXACT: "exact: goes on from the newest checkpoint",
    BY_SCRIPT: "by the script: its files are restored, and whether it goes on from them is the script's to decide",
    BEGINNING: "starts from the beginning: nothing in the script's sources loads what it has saved",
    UNKNOWN: "not known: the plan was made by a Headway that did not look",
}
_AGAIN: Final = {
    EXACT: "it goes on from its last checkpoint",
    BY_SCRIPT: "its files are restored, and whether it goes on from them is the script's to decide",
    BEGINNING: "it starts from the beginning",
    UNKNOWN: "whether it goes on from its last checkpoint is not known",
}


def in_plan(kind: str) -> str:
    """One line for a plan, and for `headway status`."""
    return _PLAN.get(kind, _PLAN[UNKNOWN])


def again(kind: str) -> str:
    """A clause that says what the next start does."""
    return _AGAIN.get(kind, _AGAIN[UNKNOWN])
