"""Quote a job's price per hour on one target, item by item; estimate what its stored data costs per month.

Pure but for reading the price table and the history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.plugins import plugin_of
from headway.pricing.estimate import PastRun, length_of, past_runs, task_of, work_of
from headway.pricing.table import (
    ACCELERATOR,
    DISK,
    HOURS_PER_MONTH,
    MACHINE,
    STORAGE,
    Price,
    Table,
    accelerators_of,
    allocatable,
    load,
    machine_for,
    machine_with,
)

if TYPE_CHECKING:
    from headway.spec import Job


DEFAULT_REGION = "us-central1"
VERTEX_FACTOR = plugin_of("vertex").list_price_factor or 1.0
# Google's list prices in the cheapest regions, of 2026-08; used where the table has no rows for disks.
DISKS_USD_PER_GB_MONTH = {"pd-standard": 0.04, "pd-balanced": 0.10, "pd-ssd": 0.17}


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One item of the quote, for one node."""

    what: str
    price: Price


@dataclass(frozen=True, kw_only=True, slots=True)
class Quote:
    """The price of an hour. `items` are per node; totals are for all nodes."""

    items: tuple[Item, ...]
    nodes: int
    spot: bool  # which of the two prices is billed
    region: str = ""
    machine: str = ""
    accelerator: tuple[str, int] | None = None
    factor: float = 1.0
    dated: str = ""
    disk_gb: float = 0.0
    disk_kind: str = "pd-balanced"
    disk_usd_per_gb_month: float = 0.0
    missing: str = ""  # why there is no price

    @property
    def price(self) -> Price:
        whole = Price(0.0, 0.0)
        for item in self.items:
            whole = whole + item.price
        return whole.times(self.factor * self.nodes)

    @property
    def disk_usd_per_month(self) -> float:
        return self.disk_gb * self.nodes * self.disk_usd_per_gb_month

    @property
    def disk_usd(self) -> float:
        """Dollars per hour for the disks of all nodes."""
        return self.disk_usd_per_month / HOURS_PER_MONTH

    @property
    def billed_usd(self) -> float:
        """Dollars per hour at the price that the job requests (spot or on demand), disks included."""
        return (self.price.spot_usd if self.spot else self.price.usd) + self.disk_usd


def quote(job: Job, kind: str, options: Mapping[str, Any], *, table: Table | None = None) -> Quote | None:
    """Quote this job on a target of this kind; None if nothing is billed."""
    resources = job.resources
    own = options.get("price")
    if own is not None:
        spot = options.get("spot_price")
        price = Price(float(own), float(own if spot is None else spot))
        item = Item(what="your price for each node", price=price)
        return Quote(items=(item,), nodes=resources.nodes, spot=resources.spot)
    if not is_billed_by_google(kind, options):
        return None
    return _google(job, kind, options, table or load())


def is_billed_by_google(kind: str, options: Mapping[str, Any]) -> bool:
    """Return whether Google's list prices apply; not on the user's own cluster."""
    return plugin_of(kind).list_price_factor is not None and options.get("platform") != "plain"


def _google(job: Job, kind: str, options: Mapping[str, Any], table: Table) -> Quote:
    region = region_of(options)
    machine, accelerator = machine_shape(job, table if plugin_of(kind).has_pods else None)
    factor = options.get("management_factor")
    disk, disk_kind = job.resources.disk, str(options.get("disk_type") or "pd-balanced")
    priced = _node(machine, accelerator, region, table)
    return Quote(
        items=priced if isinstance(priced, tuple) else (),
        nodes=job.resources.nodes,
        spot=job.resources.spot,
        region=region,
        machine=machine,
        accelerator=accelerator,
        factor=float(plugin_of(kind).list_price_factor or 1.0 if factor is None else factor),
        dated=table.dated,
        disk_gb=0.0 if disk is None else disk / 1e9,
        disk_kind=disk_kind,
        disk_usd_per_gb_month=table.per_gb_month(DISK, disk_kind, region, DISKS_USD_PER_GB_MONTH[disk_kind]),
        missing=priced if isinstance(priced, str) else "",
    )


def region_of(options: Mapping[str, Any]) -> str:
    """Return the region from `region`, `zone` (a region and a letter), `location`, or a GKE context name."""
    named = str(options.get("region") or options.get("zone") or options.get("location") or "")
    context = str(options.get("context") or "").split("_")
    if not named and len(context) == 4 and context[0] == "gke":
        named = context[2]
    parts = named.split("-")
    return "-".join(parts[:2]) if len(parts) == 3 and len(parts[2]) == 1 else named or DEFAULT_REGION


def machine_shape(job: Job, pods: Table | None = None) -> tuple[str, tuple[str, int] | None]:
    """Return the machine type and its accelerators: as named, or the usual one for the requested resources.

    With `pods`, a node also holds what GKE reserves on it.
    """
    resources = job.resources
    requested = resources.accelerator
    wanted = None if requested is None else (requested.kind, requested.count)
    machine = resources.machine
    if machine is None:
        cpus, memory = resources.cpus, resources.memory
        machine = _usual_machine(wanted, cpus, memory)
        size = pods.size(machine) if pods else None
        if size and not fits_in_pods(resources.cpus, resources.memory, size):
            machine = _usual_machine(wanted, int(size[0]) + 1, memory)  # the next larger one
    return machine, wanted or accelerators_of(machine)


def _usual_machine(wanted: tuple[str, int] | None, cpus: int | None, memory: int | None) -> str:
    usual = machine_for(*wanted, cpus=cpus, memory=memory) if wanted else None
    return usual or machine_with(cpus, memory)


def fits_in_pods(cpus: float | None, memory: int | None, size: tuple[float, float]) -> bool:
    """Return whether a pod with these requests fits on a GKE node of this size (CPUs and GiB)."""
    free_cpus, free_gib = allocatable(*size)
    return (cpus or 0) <= free_cpus and (memory or 0) / 2**30 <= free_gib


def _node(machine: str, accelerator: tuple[str, int] | None, region: str, table: Table) -> tuple[Item, ...] | str:
    """Return one node's items, or the reason why there is no price."""
    body = table.price(MACHINE, machine, region)
    if body is None:
        offered = table.regions(MACHINE, machine)
        return f"{machine} is not in the price table" if not offered else f"{machine} is not offered in {region}"
    items = [Item(what=machine, price=body)]
    if accelerator is not None:
        kind, count = accelerator
        price = table.price(ACCELERATOR, kind, region, count)
        if price is None:
            offered = table.regions(ACCELERATOR, kind)
            elsewhere = f"not offered in {region}, but in {', '.join(offered[:4])} …"
            return f"{kind} is {elsewhere if offered else 'not in the price table'}"
        items.append(Item(what=f"{count} × {kind}", price=price))
    return tuple(items)


def compare_regions(kind: str, count: int, machine: str | None = None, table: Table | None = None) -> list[Quote]:
    """Quote the same node in every region that has it, cheapest first."""
    table = table or load()
    machine = machine or machine_for(kind, count) or machine_with(None, None)
    found = []
    for region in table.regions(ACCELERATOR, kind):
        items = _node(machine, (kind, count), region, table)
        if isinstance(items, tuple):
            found.append(Quote(items=items, nodes=1, spot=False, region=region, machine=machine,
                               accelerator=(kind, count), dated=table.dated))  # fmt: skip
    return sorted(found, key=lambda each: (each.price.usd, each.price.spot_usd, each.region))


# Storage: what a run leaves in a bucket, and its cost per month. Known after a first run or a rehearsal.


STORAGE_USD_PER_GB_MONTH = 0.02  # Cloud Storage, Standard, in us-east1, of 2026-08, where the table has no row for it


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredData:
    checkpoints: int
    checkpoint_gb: float
    export_gb: float
    usd_per_gb_month: float = STORAGE_USD_PER_GB_MONTH

    @property
    def gb(self) -> float:
        return self.checkpoints * self.checkpoint_gb + self.export_gb

    @property
    def usd_per_month(self) -> float:
        return self.gb * self.usd_per_gb_month


def stored_data(job: Mapping[str, Any], past: Sequence[PastRun] | None = None, region: str = "") -> StoredData | None:
    """Estimate stored data: checkpoints by the job's retention, and the bundle; None before a similar job has run."""
    past = past_runs() if past is None else past
    same = [one for one in past if one.work == work_of(job)] or [one for one in past if one.what == task_of(job)]
    known = next((one for one in reversed(same) if one.checkpoint_bytes), None)
    if known is None or known.checkpoint_bytes is None:
        return None
    return StoredData(
        checkpoints=retained_checkpoints(job),
        checkpoint_gb=known.checkpoint_bytes / 1e9,
        export_gb=(known.export_bytes or known.checkpoint_bytes / 3) / 1e9,  # a third: without the optimizer's state
        usd_per_gb_month=load().per_gb_month(STORAGE, "standard", region, STORAGE_USD_PER_GB_MONTH),
    )


def checkpoint_s(job: Mapping[str, Any], past: Sequence[PastRun] | None = None) -> float | None:
    """Return the longest checkpoint time of earlier runs of the same work; None before one has run."""
    past = past_runs() if past is None else past
    seen = [one.checkpoint_s for one in past if one.work == work_of(job) and one.checkpoint_s is not None]
    return max(seen, default=None)


def export_s(job: Mapping[str, Any], past: Sequence[PastRun] | None = None) -> float | None:
    """Return the longest export time of earlier runs of the same work; None before one has run."""
    past = past_runs() if past is None else past
    seen = [one.export_s for one in past if one.work == work_of(job) and one.export_s is not None]
    return max(seen, default=None)


def retained_checkpoints(job: Mapping[str, Any]) -> int:
    """Count the checkpoints that are left at the end by the retention rules."""
    rules = job.get("checkpoint") or {}
    every = rules.get("keep_every")
    epochs = 0
    if isinstance(every, str) and every.split()[-1].startswith("epoch"):
        epochs = int(length_of(job) // max(1, int(every.split()[0])))
    elif isinstance(every, Mapping) and every.get("epochs"):
        epochs = int(length_of(job) // int(every["epochs"]))
    return int(rules.get("keep_last", 3)) + int(rules.get("keep_best", 1)) + epochs
