"""Runs side by side: what they scored and how sure that is, what was set differently, how they learnt."""

from __future__ import annotations

from headway.compare.comparison import compare
from headway.compare.contender import Contender, read_run

__all__ = ["Contender", "compare", "read_run"]
