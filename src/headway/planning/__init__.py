"""From a job to a plan. Needs no credentials, spends nothing, imports nothing heavy."""

from headway.planning.make import plan
from headway.planning.model import Code, Limits, Plan

__all__ = ["Code", "Limits", "Plan", "plan"]
