"""The price table: Compute Engine's dated prices, shipped in the package; a newer one from a file takes its place.

A row is a machine or an accelerator, never both (the bill is their sum), or a disk or a bucket, priced per GB.
The text is searched, not parsed: a plan needs two rows of four thousand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from headway.core.errors import BadInput
from headway.core.platform import state_dir

# Accelerators: how fast they train, and which Google machine types carry them. Pure.
#
# Speeds are for estimates: sustained, not peak, and rough. Peak figures are the vendors' (dense, mixed precision
# where the device has it); the share of the peak that training reaches is our own estimate.


# Teraflops at mixed precision, dense; CPU cores in single precision.
PEAK_TFLOPS = {
    "P4": 5.5, "P100": 19.0, "V100": 125.0, "V100-32GB": 125.0, "T4": 65.0, "A10": 125.0, "A10G": 70.0, "A30": 165.0,
    "A40": 150.0, "A100": 312.0, "A100-80GB": 312.0, "L4": 121.0, "L40": 181.0, "L40S": 362.0, "H100": 989.0,
    "H100-MEGA": 989.0, "H200": 989.0, "GH200": 989.0, "B200": 2250.0, "B300": 2500.0, "GB200": 2500.0,
    "RTX3090": 71.0, "RTX4090": 165.0, "RTX5090": 210.0, "RTXA5000": 111.0, "RTXA6000": 155.0, "RTX6000ADA": 182.0,
    "RTXPRO6000": 250.0, "MI250X": 383.0, "MI300X": 1307.0,
}  # fmt: skip
CPU_CORE_TFLOPS = 0.11  # measured here: 218 GFLOPS on two cores
# Share of the peak. The faster a device, the less of it a model of ordinary size keeps busy: between a T4 and an A100
# people see a factor of 2.5 to 3, not 4.8 (T4 6–8 h, V100 3–4 h, A100 2–3 h for the same job).
GPU_UTILISATION, CPU_UTILISATION, SCALING_EXPONENT = 0.25, 0.5, 0.65


def sustained_tflops(kind: str | None, count: int = 1, *, cpus: int = 1) -> float | None:
    """Estimate the teraflops that ordinary training sustains on one node; None for a device without figures."""
    if kind is None:
        return CPU_CORE_TFLOPS * CPU_UTILISATION * max(1, cpus)
    peak = PEAK_TFLOPS.get(kind)
    if peak is None:
        return None
    reference = PEAK_TFLOPS["T4"]
    return float(GPU_UTILISATION * reference * (peak / reference) ** SCALING_EXPONENT * count**0.9)


# Accelerators built into their machine types: machine type by number of accelerators.
_MACHINES_WITH_GPU = {
    "L4": {1: "g2-standard-8", 2: "g2-standard-24", 4: "g2-standard-48", 8: "g2-standard-96"},
    "A100": {n: f"a2-highgpu-{n}g" for n in (1, 2, 4, 8)} | {16: "a2-megagpu-16g"},
    "A100-80GB": {n: f"a2-ultragpu-{n}g" for n in (1, 2, 4, 8)},
    "H100": {n: f"a3-highgpu-{n}g" for n in (1, 2, 4, 8)},
    "H100-MEGA": {8: "a3-megagpu-8g"},
    "H200": {8: "a3-ultragpu-8g"},
}
# Accelerators attached to general-purpose machines: with enough CPUs to feed them, up to the most that is allowed.
_MAX_CPUS_PER_GPU = {
    "T4": {1: 16, 2: 32, 4: 96},
    "P4": {1: 16, 2: 32, 4: 96},
    "P100": {1: 16, 2: 32, 4: 32},
    "V100": {1: 8, 2: 16, 4: 32, 8: 96},
}
_CPUS_PER_GPU = {1: 8, 2: 16, 4: 32, 8: 64}
_N1 = (4, 8, 16, 32, 64, 96)  # n1-standard-1 and -2 are not offered for training
_G2 = {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}
_GIB_PER_CPU = {"n1-standard": 3.75, "n1-highmem": 6.5, "g2-standard": 4.0}


def machine_for(kind: str, count: int, *, cpus: int | None = None, memory: int | None = None) -> str | None:
    """Return the usual machine type for `count` accelerators, or the next larger with enough CPUs and bytes of memory.

    None if that combination is not sold. If none is large enough, the usual one: the target reports the problem.
    """
    if kind in _MACHINES_WITH_GPU:
        usual = _MACHINES_WITH_GPU[kind].get(count)
        sizes = [size for size, has in _G2.items() if kind == "L4" and has == count and size >= 8]
        return _smallest("g2-standard", sizes, cpus, memory) or usual
    most = _MAX_CPUS_PER_GPU.get(kind, {}).get(count)
    if most is None:
        return None
    sizes = [size for size in _N1 if _CPUS_PER_GPU[count] <= size <= most]
    return _general(sizes, cpus, memory) or f"n1-standard-{_CPUS_PER_GPU[count]}"


def _general(sizes: Iterable[int], cpus: int | None, memory: int | None) -> str | None:
    sizes = list(sizes)
    return _smallest("n1-standard", sizes, cpus, memory) or _smallest("n1-highmem", sizes, cpus, memory)


def _smallest(family: str, sizes: Iterable[int], cpus: int | None, memory: int | None) -> str | None:
    gib = (memory or 0) / 2**30
    fitting = (size for size in sorted(sizes) if size >= (cpus or 1) and size * _GIB_PER_CPU[family] >= gib)
    return next((f"{family}-{size}" for size in fitting), None)


def accelerators_of(machine: str) -> tuple[str, int] | None:
    """Return the accelerators built into a machine type; None if it has none."""
    g2 = re.fullmatch(r"g2-standard-(\d+)", machine)
    if g2:
        return "L4", _G2.get(int(g2[1]), 1)
    families = {"a2-highgpu": "A100", "a2-megagpu": "A100", "a2-ultragpu": "A100-80GB", "a3-highgpu": "H100",
                "a3-megagpu": "H100-MEGA", "a3-ultragpu": "H200"}  # fmt: skip
    built = re.fullmatch(r"(a[23]-[a-z]+)-(\d+)g", machine)
    return (families[built[1]], int(built[2])) if built and built[1] in families else None


def machine_with(cpus: int | None, memory: int | None) -> str:
    """Return the smallest general-purpose machine type with enough CPUs and bytes of memory, if a job names none."""
    return _general(_N1, cpus, memory) or "n1-highmem-96"


_RESERVED_CPU = ((1, 0.06), (2, 0.01), (4, 0.005), (math.inf, 0.0025))  # share of each CPU up to this number
_RESERVED_GIB = ((4, 0.25), (8, 0.20), (16, 0.10), (128, 0.06), (math.inf, 0.02))  # share of each GiB up to this number
_EVICTION_GIB = 100 / 1024


def allocatable(vcpus: float, memory_gib: float) -> tuple[float, float]:
    """Return the CPUs and GiB that GKE leaves to pods on a node of this size, by its published formula.

    Pods of the cluster itself (logging, DNS, GPU driver) take some of that: about 0.3 CPUs on every node.
    """
    return vcpus - _reserved(vcpus, _RESERVED_CPU), memory_gib - _reserved(memory_gib, _RESERVED_GIB) - _EVICTION_GIB


def _reserved(size: float, shares: Iterable[tuple[float, float]]) -> float:
    reserved, below = 0.0, 0.0
    for up_to, share in shares:
        reserved += share * max(0.0, min(size, up_to) - below)
        below = up_to
    return reserved


COLUMNS = "kind,name,count,vcpus,memory_gib,region,usd_per_hour,spot_usd_per_hour"
MACHINE, ACCELERATOR, DISK, STORAGE = "machine", "accelerator", "disk", "storage"
KINDS = (MACHINE, ACCELERATOR, DISK, STORAGE)
HOURS_PER_MONTH = 730
_BUNDLED_TABLE = Path(__file__).with_name("prices.csv")
_MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per hour."""

    usd: float
    spot_usd: float

    def __add__(self, other: Price) -> Price:
        return Price(self.usd + other.usd, self.spot_usd + other.spot_usd)

    def times(self, factor: float) -> Price:
        return Price(self.usd * factor, self.spot_usd * factor)


@dataclass(frozen=True, slots=True)
class Row:
    kind: str
    name: str
    count: int
    vcpus: float
    memory_gib: float
    region: str
    price: Price


@dataclass(frozen=True, slots=True)
class Table:
    text: str
    dated: str
    source: str  # "Google Compute Engine", or what the file calls itself

    def rows(self, kind: str, name: str) -> list[Row]:
        """Return the rows of every count and region of one machine or accelerator."""
        head = f"\n{kind},{name},"
        found, at = [], self.text.find(head)
        while at >= 0:
            end = self.text.find("\n", at + 1)
            found.append(_row(self.text[at + 1 : end if end >= 0 else None]))
            at = self.text.find(head, max(end, at + 1))
        return found

    def price(self, kind: str, name: str, region: str, count: int = 1) -> Price | None:
        """Look up a price; None if it is not offered. A count that is not listed is priced per unit."""
        here = [row for row in self.rows(kind, name) if row.region == region]
        exact = next((row for row in here if row.count == count), None)
        if exact is not None:
            return exact.price
        fewest = min(here, key=lambda row: row.count, default=None)
        return None if fewest is None else fewest.price.times(count / fewest.count)

    def size(self, machine: str) -> tuple[float, float] | None:
        """Look up a machine's CPUs and GiB of memory; None if the table does not have it."""
        rows = self.rows(MACHINE, machine)
        return (rows[0].vcpus, rows[0].memory_gib) if rows else None

    def per_gb_month(self, kind: str, name: str, region: str, otherwise: float) -> float:
        """Look up a disk or bucket, whose rows are per GB and hour; `otherwise` if the table has none."""
        found = self.price(kind, name, region)
        return otherwise if found is None else found.usd * HOURS_PER_MONTH

    def regions(self, kind: str, name: str) -> list[str]:
        return sorted({row.region for row in self.rows(kind, name)})

    def names(self, kind: str) -> list[str]:
        return sorted(set(re.findall(rf"^{kind},([^,]+),", self.text, re.MULTILINE)))


@lru_cache(maxsize=1)
def _read(path: Path, stamp: int) -> Table:
    return parse(path.read_text(), where=str(path))


def load() -> Table:
    """Load the newer of the package's own table and the one stored by `headway prices --update`."""
    bundled = _read(_BUNDLED_TABLE, _BUNDLED_TABLE.stat().st_mtime_ns)
    updated = updated_path()
    if not updated.exists():
        return bundled
    chosen = _read(updated, updated.stat().st_mtime_ns)
    return chosen if chosen.dated >= bundled.dated else bundled


def updated_path() -> Path:
    return state_dir() / "prices.csv"


def parse(text: str, *, where: str = "prices") -> Table:
    """Parse a table's header. Raises BadInput for another format. Rows are parsed on use."""
    comment, _, rest = text.partition("\n")
    dated = re.search(r"\d{4}-\d{2}-\d{2}", comment)
    if not comment.startswith("#") or dated is None or not rest.startswith(COLUMNS + "\n"):
        raise BadInput(
            "this is not a price table",
            where=where,
            fix=f"first line `# SOURCE, USD an hour, YYYY-MM-DD`, then `{COLUMNS}`",
        )
    return Table(text=text, dated=dated[0], source=comment[1:].split(",")[0].strip())


def update(path: Path) -> Table:
    """Store a table from a file for all later plans, after checking every row."""
    from headway.storage import open_store

    try:
        if path.stat().st_size > _MAX_BYTES:
            raise BadInput(f"a price table has at most {_MAX_BYTES:,} bytes", where=str(path))
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the price table cannot be read: {error}", where=str(path)) from None
    table = parse(text, where=str(path))
    for number, line in enumerate(text.splitlines()[2:], start=3):
        if line.strip():
            try:
                _row(line)
            except ValueError as error:
                raise BadInput(f"not a price: {error}", where=f"{path}:{number}", fix=COLUMNS) from None
    open_store(str(updated_path().parent)).write(updated_path().name, text.encode())
    return table


def _row(line: str) -> Row:
    parts = line.split(",")
    if len(parts) != 8:
        raise ValueError(f"{len(parts)} values instead of 8")
    kind, name, count, vcpus, memory, region, usd, spot = parts
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is none of {', '.join(KINDS)}")
    price = Price(float(usd), float(spot or usd))
    if not (0 <= price.usd < 1e6 and 0 <= price.spot_usd < 1e6):
        raise ValueError(f"{usd} and {spot}")
    return Row(kind, name, int(count or 1), float(vcpus or 0), float(memory or 0), region, price)
