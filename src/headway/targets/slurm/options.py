"""What a Slurm target's entry in the job file may say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from headway.spec.model import Seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    partition: str | None = None  # where it waits and runs; by default the cluster's own choice
    account: str | None = None  # whose share it counts against
    qos: str | None = None  # quality of service, where the cluster has several
    constraint: str | None = None  # features its nodes must have: "a100&nvlink"
    gres: str | None = None  # what this cluster calls the accelerator, without a count: gpu, or gpu:tesla_t4
    time: Seconds | None = None  # at most this long for each start; a longer run is requeued and goes on
    grace: Seconds = 30.0  # from SIGTERM to SIGKILL: the cluster's KillWait
    requeue: bool = True  # after a preemption, a failed node or the end of `time`, wait in the queue again and go on
    python: str | None = None  # the interpreter that trains; by default the one that runs headway
    price: Annotated[float, ">= 0"] | None = None  # USD an hour of one node, for estimates and a budget in dollars
    args: tuple[str, ...] = ()  # more options for sbatch: --exclusive
