"""Options of a Slurm target in the job file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from headway.spec.model import Seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    partition: str | None = None  # the partition; by default the cluster's own
    account: str | None = None  # the account that is charged
    qos: str | None = None  # quality of service
    constraint: str | None = None  # features that the nodes must have: "a100&nvlink"
    gres: str | None = None  # this cluster's name of the accelerator, without a count: gpu, or gpu:tesla_t4
    time: Seconds | None = None  # time limit of each start; a longer run is requeued and continues
    grace: Seconds = 30.0  # from SIGTERM to SIGKILL: the cluster's KillWait
    requeue: bool = True  # after a preemption, a node failure or the end of `time`, queue again and continue
    python: str | None = None  # the interpreter that trains; by default the one that runs headway
    price: Annotated[float, ">= 0"] | None = None  # USD per hour of one node, for estimates and a budget in dollars
    args: tuple[str, ...] = ()  # more options for sbatch: --exclusive
