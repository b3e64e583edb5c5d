"""How many ranks a job asks for."""

from __future__ import annotations

from headway.spec.model import Job


def processes(job: Job) -> int:
    """Ranks on each node: one for each accelerator, or one."""
    if job.resources.processes != "auto":
        return job.resources.processes
    return job.resources.accelerator.count if job.resources.accelerator else 1
