"""A small world for job files: one recipe and two kinds of targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal

from headway.core.errors import Problem
from headway.plugins import Catalog
from headway.spec import Job
from headway.spec.model import ReferenceString, Seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """How the learning rate goes."""

    kind: Literal["constant", "cosine"] = "cosine"
    warmup: Annotated[int, ">= 0"] = 0  # steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """What the captioner of these tests can be told."""

    decoder: Literal["lstm", "attention"] = "lstm"  # how words are made
    epochs: Annotated[int, ">= 1"] = 10
    batch: int = 64
    lr: Annotated[float, "> 0"] = 1e-3
    dropout: Annotated[float, ">= 0", "< 1"] = 0.1
    clip: float | None = 5.0  # null: no clipping
    sizes: tuple[int, int] = (64, 64)
    tags: list[str] = field(default_factory=list)
    # Two lines of reasons
    # above the field.
    schedule: Schedule = field(default_factory=Schedule)


@dataclass(frozen=True, kw_only=True, slots=True)
class Local:
    grace: Seconds = 30.0  # from the first signal to the last


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    namespace: str = "default"
    project: ReferenceString | None = None
    engine: Literal["pytorchjob", "statefulset"] = "pytorchjob"
    price: Annotated[float, ">= 0"] | None = None


CATALOG = Catalog(
    recipes={"captioning": lambda: Config},
    targets={"local": lambda: Local, "kubernetes": lambda: Cluster},
    data={"captioning": "builtin:scenes"},
)

Load = Callable[..., Job]
Problems = Callable[..., "dict[str, Problem]"]
