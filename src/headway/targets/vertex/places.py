"""Where a run may go, in order: the entry's own region and machine, then each of `fallback`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headway.spec.model import Accelerator, Resources
from headway.spec.plain import from_plain
from headway.targets.vertex import machines
from headway.targets.vertex.options import Options


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    region: str
    machine: str
    accelerator: Accelerator | None
    spot: bool

    def __str__(self) -> str:
        gpus = f" with {self.accelerator.kind}:{self.accelerator.count}" if self.accelerator else ""
        return f"{self.machine}{gpus}{' (spot)' if self.spot else ''} in {self.region}"


def places(resources: Resources, options: Options) -> list[Place]:
    """The first one, and what to try where it has no room."""
    found = [_place(resources, options.region)]
    for other in options.fallback:
        changed = replace(resources, spot=resources.spot if other.spot is None else other.spot)
        if other.accelerator or other.machine:
            # Another accelerator may need another machine: one that was named for the first is not kept by accident.
            machine = other.machine or (None if other.accelerator else resources.machine)
            accelerator = other.accelerator or _of_machine(other.machine) or resources.accelerator
            changed = replace(changed, machine=machine, accelerator=accelerator)
        found.append(_place(changed, other.region or options.region))
    return found


def of_job(job: Mapping[str, Any], options: Options) -> list[Place]:
    """The same from a plan's copy of the job."""
    return places(from_plain(job.get("resources", {}), Resources, where="resources"), options)


def regions(options: Options) -> list[str]:
    """Every region that a run of this entry may be in."""
    return list(dict.fromkeys([options.region, *(other.region for other in options.fallback if other.region)]))


def _place(resources: Resources, region: str) -> Place:
    machine = machines.chosen(resources)
    return Place(region=region, machine=machine, accelerator=resources.accelerator, spot=resources.spot)


def _of_machine(machine: str | None) -> Accelerator | None:
    known = machines.MACHINES.get(machine or "")
    return known.built_in if known else None
