"""The price table: Compute Engine's dated prices, shipped in the package; a newer one from a file takes its place.

A row is a machine or an accelerator, never both (the bill is their sum), or a disk or a bucket, priced per GB.
The text is searched, not parsed: a plan needs two rows of four thousand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from headway.core.errors import BadInput
from headway.core.paths import home

COLUMNS = "kind,name,count,vcpus,memory_gib,region,usd_per_hour,spot_usd_per_hour"
MACHINE, ACCELERATOR, DISK, STORAGE = "machine", "accelerator", "disk", "storage"
KINDS = (MACHINE, ACCELERATOR, DISK, STORAGE)
HOURS_A_MONTH = 730
_OWN = Path(__file__).with_name("prices.csv")
_LARGEST = 16 << 20


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

    def per_gb_month(self, kind: str, name: str, region: str, otherwise: float) -> float:
        """Look up a disk or bucket, whose rows are per GB and hour; `otherwise` if the table has none."""
        found = self.price(kind, name, region)
        return otherwise if found is None else found.usd * HOURS_A_MONTH

    def regions(self, kind: str, name: str) -> list[str]:
        return sorted({row.region for row in self.rows(kind, name)})

    def names(self, kind: str) -> list[str]:
        return sorted(set(re.findall(rf"^{kind},([^,]+),", self.text, re.MULTILINE)))


@lru_cache(maxsize=1)
def _read(path: Path, stamp: int) -> Table:
    return parse(path.read_text(), where=str(path))


def load() -> Table:
    """Load the newer of the package's own table and the one stored by `headway prices --update`."""
    own = _read(_OWN, _OWN.stat().st_mtime_ns)
    kept = kept_path()
    if not kept.exists():
        return own
    other = _read(kept, kept.stat().st_mtime_ns)
    return other if other.dated >= own.dated else own


def kept_path() -> Path:
    return home() / "prices.csv"


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
        if path.stat().st_size > _LARGEST:
            raise BadInput(f"a price table has at most {_LARGEST:,} bytes", where=str(path))
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
    open_store(str(kept_path().parent)).write(kept_path().name, text.encode())
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
