"""Machine types of Vertex AI and the accelerators that each supports. A dated table; makes no request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from headway.core.errors import Problem
from headway.pricing.quote import quote
from headway.pricing.table import machine_for, machine_with
from headway.spec.loading import from_plain, to_plain
from headway.spec.model import Accelerator, Resources
from headway.targets.vertex.options import Options

if TYPE_CHECKING:
    from headway.spec import Job


AS_OF = "2026-11"  # collected by hand; most reliable for T4, L4, A100 and H100, least for P4, P100 and V100 on N1

# Names of accelerators: job file -> Vertex AI.
ACCELERATORS = {
    "A100": "NVIDIA_TESLA_A100",
    "A100-80GB": "NVIDIA_A100_80GB",
    "B200": "NVIDIA_B200",
    "GB200": "NVIDIA_GB200",
    "H100": "NVIDIA_H100_80GB",
    "H100-MEGA": "NVIDIA_H100_MEGA_80GB",
    "H200": "NVIDIA_H200_141GB",
    "L4": "NVIDIA_L4",
    "P100": "NVIDIA_TESLA_P100",
    "P4": "NVIDIA_TESLA_P4",
    "RTXPRO6000": "NVIDIA_RTX_PRO_6000",
    "T4": "NVIDIA_TESLA_T4",
    "V100": "NVIDIA_TESLA_V100",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A machine type. `built_in` are accelerators that are part of it; `supports` checks a request."""

    name: str
    cpus: int
    memory_gib: float
    built_in: Accelerator | None = None

    def supports(self, wanted: Accelerator | None) -> bool:
        if self.built_in is not None:
            return wanted == self.built_in
        return wanted is None or wanted.count in attachable(self.name, wanted.kind)


def attachable(machine: str, kind: str) -> tuple[int, ...]:
    """Return how many accelerators of a kind an N1 machine accepts. Bigger machines require more of them."""
    family, _, size = machine.rpartition("-")
    if not family.startswith("n1-"):
        return ()
    cpus = int(size)
    if kind == "V100":
        return (1, 2, 4, 8) if cpus <= 8 else (2, 4, 8) if cpus <= 16 else (4, 8) if cpus <= 32 else (8,)
    if kind == "P100" and cpus > 32:
        return ()
    if kind in ("P100", "P4", "T4"):
        return (1, 2, 4) if cpus <= 16 else (2, 4) if cpus <= 32 else (4,)
    return ()


def _sizes(family: str, sizes: tuple[int, ...], gib_per_cpu: float) -> Iterator[Machine]:
    for cpus in sizes:
        yield Machine(name=f"{family}-{cpus}", cpus=cpus, memory_gib=round(cpus * gib_per_cpu, 1))


def _general() -> Iterator[Machine]:
    yield from _sizes("n1-standard", (4, 8, 16, 32, 64, 96), 3.75)
    yield from _sizes("n1-highmem", (2, 4, 8, 16, 32, 64, 96), 6.5)
    yield from _sizes("n1-highcpu", (16, 32, 64, 96), 0.9)
    yield from _sizes("e2-standard", (4, 8, 16, 32), 4)
    yield from _sizes("e2-highmem", (2, 4, 8, 16), 8)
    yield from _sizes("e2-highcpu", (16, 32), 1)
    for family in ("n2", "n2d"):
        yield from _sizes(f"{family}-standard", (4, 8, 16, 32, 48, 64, 80), 4)
        yield from _sizes(f"{family}-highmem", (2, 4, 8, 16, 32, 48, 64, 80), 8)
        yield from _sizes(f"{family}-highcpu", (16, 32, 48, 64, 80), 1)
    yield from _sizes("c2-standard", (4, 8, 16, 30, 60), 4)
    yield from _sizes("c2d-standard", (4, 8, 16, 32, 56, 112), 4)
    yield from _sizes("c2d-highmem", (2, 4, 8, 16, 32, 56, 112), 8)
    yield from _sizes("c2d-highcpu", (4, 8, 16, 32, 56, 112), 2)
    yield from _sizes("c3-standard", (4, 8, 22, 44, 88, 176), 4)
    yield from _sizes("c3-highmem", (4, 8, 22, 44, 88, 176), 8)
    yield from _sizes("c3-highcpu", (4, 8, 22, 44, 88, 176), 2)
    for name, cpus, gb in (("m1-ultramem-40", 40, 961), ("m1-ultramem-80", 80, 1922), ("m1-ultramem-160", 160, 3844)):
        yield Machine(name=name, cpus=cpus, memory_gib=gb)
    yield Machine(name="m1-megamem-96", cpus=96, memory_gib=1433.6)


# Machines with built-in accelerators: type, CPUs, GiB, kind, count.
_ACCELERATED = (
    *((f"g2-standard-{cpus}", cpus, cpus * 4, "L4", 1) for cpus in (4, 8, 12, 16, 32)),
    *((f"g2-standard-{cpus}", cpus, cpus * 4, "L4", count) for cpus, count in ((24, 2), (48, 4), (96, 8))),
    *((f"a2-highgpu-{count}g", 12 * count, 85 * count, "A100", count) for count in (1, 2, 4, 8)),
    ("a2-megagpu-16g", 96, 1360, "A100", 16),
    *((f"a2-ultragpu-{count}g", 12 * count, 170 * count, "A100-80GB", count) for count in (1, 2, 4, 8)),
    *((f"a3-highgpu-{count}g", 26 * count, 234 * count, "H100", count) for count in (1, 2, 4, 8)),
    ("a3-edgegpu-8g", 208, 1872, "H100", 8),
    ("a3-megagpu-8g", 208, 1872, "H100-MEGA", 8),
    ("a3-ultragpu-8g", 224, 2952, "H200", 8),
    ("a4-highgpu-8g", 224, 3968, "B200", 8),
)

MACHINES: dict[str, Machine] = {
    machine.name: machine
    for machine in (
        *_general(),
        *(
            Machine(name=name, cpus=cpus, memory_gib=gb, built_in=Accelerator(kind=kind, count=count))
            for name, cpus, gb, kind, count in _ACCELERATED
        ),
    )
}
_FAMILIES = {name.partition("-")[0] for name in MACHINES}


def machine_name(resources: Resources) -> str:
    """Return the requested machine, or the default one for the requested resources, which pricing uses too."""
    if resources.machine:
        return resources.machine
    accelerator = resources.accelerator
    cpus, memory = resources.cpus, resources.memory
    usual = machine_with(cpus, memory)
    if accelerator is not None:
        usual = machine_for(accelerator.kind, accelerator.count, cpus=cpus, memory=memory) or ""
    if usual in MACHINES and _fits(MACHINES[usual], resources):
        return usual
    fitting = [machine for machine in MACHINES.values() if _fits(machine, resources)]
    general = [machine for machine in fitting if machine.name.startswith("n1-standard")]
    best = min(general or fitting, key=lambda machine: (machine.cpus, machine.memory_gib), default=None)
    return best.name if best else usual or "n1-standard-8"


def _fits(machine: Machine, resources: Resources) -> bool:
    cpus = resources.cpus or 1
    memory = (resources.memory or 0) / 2**30
    return machine.supports(resources.accelerator) and machine.cpus >= cpus and machine.memory_gib >= memory


def cpus_of(name: str) -> int:
    """Return a machine's CPUs; if the table lacks it, the number in its name, or else 4."""
    known = MACHINES.get(name)
    last = name.rpartition("-")[2]
    return known.cpus if known else int(last) if last.isdigit() else 4


def is_unknown_family(name: str) -> bool:
    """Return whether the table lacks the machine's family: Vertex AI decides then, and the plan has a note."""
    return name.partition("-")[0] not in _FAMILIES


def problems(machine: str, accelerator: Accelerator | None, *, where: str) -> Iterator[Problem]:
    """Yield why machine and accelerator do not fit together, with what to write instead."""
    if accelerator is not None and accelerator.kind not in ACCELERATORS:
        fix = f"one of {', '.join(ACCELERATORS)}"
        yield Problem(what=f"Vertex AI has no {accelerator.kind}", where=f"{where}.accelerator", fix=fix)
        return
    if is_unknown_family(machine):
        return
    entry = MACHINES.get(machine)
    if entry is None:
        close = _nearest(machine)
        fix = f"machine: {close}" if close else "leave `machine` out: the accelerator decides"
        yield Problem(what=f"Vertex AI does not train on {machine!r}", where=f"{where}.machine", fix=fix)
    elif not entry.supports(accelerator):
        yield _mismatch(entry, accelerator, where)


def _nearest(name: str) -> str | None:
    """Return the next bigger machine of the family, or the one most similar in name."""
    family, _, size = name.rpartition("-")
    kin = [machine for machine in MACHINES.values() if machine.name.rpartition("-")[0] == family and size.isdigit()]
    if kin:
        bigger = [machine for machine in kin if machine.cpus >= int(size)]
        return (bigger[0] if bigger else kin[-1]).name
    return next(iter(get_close_matches(name, MACHINES, n=1)), None)


def _mismatch(machine: Machine, accelerator: Accelerator | None, where: str) -> Problem:
    where = f"{where}.accelerator"
    if machine.built_in is not None:
        has = f"{machine.built_in.kind}:{machine.built_in.count}"
        what = f"{machine.name} has {has} in it" + (
            f", not {accelerator.kind}:{accelerator.count}" if accelerator else ""
        )
        others = [] if accelerator is None else _machines_with(accelerator)
        other = f"; or machine: {others[0]}" if others else ""
        return Problem(what=what, where=where, fix=f"accelerator: {has}{other}")
    assert accelerator is not None
    counts = attachable(machine.name, accelerator.kind)
    what = f"{machine.name} does not take {accelerator.kind}:{accelerator.count}"
    if counts:
        return Problem(
            what=what, where=where, fix=f"accelerator: {accelerator.kind}:{counts[0]} (it takes {_join_or(counts)})"
        )
    others = _machines_with(accelerator)
    fix = f"machine: {others[0]}" if others else f"another number of {accelerator.kind}"
    return Problem(what=what, where=where, fix=fix)


def _machines_with(accelerator: Accelerator) -> list[str]:
    found = [machine for machine in MACHINES.values() if machine.supports(accelerator)]
    return [machine.name for machine in sorted(found, key=lambda machine: (machine.cpus, machine.memory_gib))]


def _join_or(counts: tuple[int, ...]) -> str:
    return " or ".join(map(str, counts))


# Candidate regions of a run, in order, with machine and price: the target's own first, then each of `fallback`.
#
# Pure, except for the price table.


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    region: str
    machine: str
    accelerator: Accelerator | None
    spot: bool

    def __str__(self) -> str:
        gpus = f" with {self.accelerator.kind}:{self.accelerator.count}" if self.accelerator else ""
        return f"{self.machine}{gpus}{' (spot)' if self.spot else ''} in {self.region}"


def placements(resources: Resources, options: Options) -> list[Placement]:
    """Return the preferred region and the fallbacks to try if it has no capacity."""
    result = [_placement(resources, options.region)]
    for fallback in options.fallback:
        changed = replace(resources, spot=resources.spot if fallback.spot is None else fallback.spot)
        if fallback.accelerator or fallback.machine:
            # Another accelerator may need another machine, so do not keep the one named for the first.
            machine = fallback.machine or (None if fallback.accelerator else resources.machine)
            accelerator = fallback.accelerator or _built_in_accelerator(fallback.machine) or resources.accelerator
            changed = replace(changed, machine=machine, accelerator=accelerator)
        result.append(_placement(changed, fallback.region or options.region))
    return result


def job_placements(job: Mapping[str, Any], options: Options) -> list[Placement]:
    """Return the candidates of a plan's copy of the job."""
    return placements(from_plain(job.get("resources", {}), Resources, where="resources"), options)


def regions(options: Options) -> list[str]:
    """Return every region that a run of this target may be in."""
    return list(dict.fromkeys([options.region, *(other.region for other in options.fallback if other.region)]))


def _placement(resources: Resources, region: str) -> Placement:
    machine = machine_name(resources)
    return Placement(region=region, machine=machine, accelerator=resources.accelerator, spot=resources.spot)


def _built_in_accelerator(machine: str | None) -> Accelerator | None:
    known = MACHINES.get(machine or "")
    return known.built_in if known else None


# Prices: a budget in dollars must hold in the most expensive region


def usd_per_hour(job: Job, options: Options) -> list[tuple[Placement, float | None]]:
    """Return the price of all nodes per candidate, as billed there; None if the table lacks it."""
    return [(placement, _usd_per_hour(placement, job, options)) for placement in placements(job.resources, options)]


def hours(job: Job, options: Options) -> float | None:
    """Return the hours that the budget allows in the most expensive candidate; None if unlimited."""
    known = [usd for _, usd in usd_per_hour(job, options) if usd]
    if job.budget.usd is None or not known:
        return job.budget.hours
    allowed = job.budget.usd / max(known)
    return allowed if job.budget.hours is None else min(allowed, job.budget.hours)


def notes(job: Job, options: Options) -> Iterator[str]:
    (_, first), *others = usd_per_hour(job, options)
    if job.budget.usd is None:
        return
    pricier = [(placement, usd) for placement, usd in others if usd and first and usd > first]
    if pricier:
        priciest, price = max(pricier, key=lambda pair: pair[1])
        yield f"budget: computed with the most expensive placement, {priciest}: ${price:.3f} an hour"
    for placement, usd in others:
        if usd is None:
            yield f"no price is known for {placement}: there, the budget's hours of the other placements apply"


def _usd_per_hour(placement: Placement, job: Job, options: Options) -> float | None:
    resources = replace(
        job.resources, machine=placement.machine, accelerator=placement.accelerator, spot=placement.spot
    )
    bill = quote(replace(job, resources=resources), "vertex", {**to_plain(options), "region": placement.region})
    return None if bill is None or bill.missing else bill.billed_usd
