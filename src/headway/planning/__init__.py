"""From a job to a plan. Needs no credentials, spends nothing, imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.core.plan import Code, Limits, Plan

if TYPE_CHECKING:
    from headway.planning.build import plan

__all__ = ["Code", "Limits", "Plan", "plan"]


def __getattr__(name: str) -> Any:
    # Imported on use: the supervisor reads plans but never makes one, so it does not load the planner.
    if name != "plan":
        raise AttributeError(f"module 'headway.planning' has no attribute {name!r}")
    from headway.planning.build import plan

    return plan
