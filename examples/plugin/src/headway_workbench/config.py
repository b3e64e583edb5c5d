"""Settings of the recipe. Imports nothing heavy: a job file is checked with them before anything is installed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    epochs: Annotated[int, ">= 1"] = 20  # passes over the data
    lr: Annotated[float, "> 0"] = 0.1  # learning rate
    slope: float = 2.0  # of the line from which the points are drawn
    points: Annotated[int, ">= 8"] = 256  # how many, in each split
