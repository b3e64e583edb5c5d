"""How to compute: the job's `precision`, `compile`, `accumulate`, `clip` and `channels_last`.

A key of the job applies to recipes and scripts alike, and takes precedence over the key of that name in `config` and
over the `clip` that a script passes to `run.step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import torch
from torch import nn

from headway.spec import Job


class ComputeKeys(TypedDict, total=False):
    """The keys as `headway.start` takes them."""

    precision: Literal["fp32", "tf32", "bf16", "fp16"]
    compile: bool
    accumulate: int | Literal["auto"]
    clip: float
    channels_last: bool


def given_keys(compute: ComputeKeys) -> dict[str, Any]:
    """Return the keys that a script has set. Raises TypeError for others, as a function does."""
    unknown = sorted(compute.keys() - ComputeKeys.__annotations__.keys())
    if unknown:
        raise TypeError(f"start() got an unexpected keyword argument {unknown[0]!r}")
    return {name: value for name, value in compute.items() if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeSettings:
    """The settings of one run, with defaults filled in."""

    precision: str = "fp32"
    strict: bool = False  # fp32 was asked for by name: no TF32 in convolutions, which torch allows by default
    compile: bool = False
    accumulate: Any = 1
    clip: float | None = None  # None: what the script passes to run.step
    channels_last: bool = False


def read_settings(job: Job) -> ComputeSettings:
    """Read the settings of the job or, where it has none, of its config."""

    def setting(name: str, default: Any) -> Any:
        of_job = getattr(job, name)
        return of_job if of_job is not None else config.get(name, default)

    config: Mapping[str, Any] = job.config
    return ComputeSettings(
        precision=str(setting("precision", "fp32")),
        strict=job.precision == "fp32",
        compile=bool(setting("compile", False)),
        accumulate=setting("accumulate", 1),
        clip=job.clip,
        channels_last=bool(setting("channels_last", False)),
    )


@torch.no_grad()
def to_channels_last(model: nn.Module) -> None:
    """Store the weights of 2-D and 3-D convolutions channels last; convolutions then give outputs of that format."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for parameter in model.parameters():
        if parameter.dim() in formats:
            parameter.data = parameter.data.contiguous(memory_format=formats[parameter.dim()])
