"""Formatting for the terminal: numbers, tables, sizes, prices. Plain text; colour only where a person reads it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.planning import Plan


_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34"}


def supports_colour(stream: Any = None) -> bool:
    stream = sys.stdout if stream is None else stream
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str) -> str:
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if supports_colour() else text


def size(count: float) -> str:
    """1536 -> 1.5 kB: decimal units, as disks and clouds bill."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """75 -> 1m15s."""
    total = round(seconds)
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m{total % 60:02d}s"
    if total < 86400:
        return f"{total // 3600}h{total % 3600 // 60:02d}m"
    return f"{total // 86400}d{total % 86400 // 3600:02d}h"


def ago(then: float, now: float) -> str:
    return f"{duration(max(0, now - then))} ago"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table: columns as wide as their widest cell, two spaces between them."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

    return "\n".join([paint(line(header), "dim"), *map(line, rows)])


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)


def usd(amount: float) -> str:
    """4.404 -> $4.40; amounts below a dollar keep three digits."""
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.3f}"


def is_billed(plan: Plan) -> bool:
    return bool(plan.price.get("usd_per_hour"))


def price_rows(price: Mapping[str, Any]) -> dict[str, str]:
    """Return the price lines of a plan's description, by heading."""
    if "missing" in price:
        return {"price": f"not known: {price['missing']}"}
    if not price.get("usd_per_hour"):
        return {"price": "nothing is billed", **_expected(price)}
    return {"price": _per_hour(price), **_expected(price), **_ceiling(price), **_storage_rows(price)}


def _per_hour(price: Mapping[str, Any]) -> str:
    head = f"{usd(price['usd_per_hour'])}/h on demand, {usd(price['spot_usd_per_hour'])}/h spot"
    billed = "spot_usd_per_hour" if price["billed"] == "spot" else "usd_per_hour"
    parts = " + ".join(f"{item['what']} {usd(item[billed])}" for item in price["items"])
    nodes = f"{price['nodes']} × " if price["nodes"] > 1 else ""
    factor = price.get("management_factor", 1.0)
    fee = f" × {factor:g} Vertex AI management fee (management_factor)" if factor != 1 else ""
    where = f", {price['region']}, prices of {price['dated']}" if price.get("region") else ""
    return f"{head}; billed {price['billed']}: {nodes}({parts}){fee}{where}"


def _expected(price: Mapping[str, Any]) -> dict[str, str]:
    if price.get("expected_hours") is None:
        return {"expected": "not estimated: headway plan --rehearse measures it"} if price.get("usd_per_hour") else {}
    cost = f"{usd(price['expected_usd'])} in " if price.get("expected_usd") is not None else ""
    return {"expected": f"{cost}{duration(price['expected_hours'] * 3600)}, {price['basis']}: {price['estimated_by']}"}


def _ceiling(price: Mapping[str, Any]) -> dict[str, str]:
    limit = price.get("ceiling_usd")
    return {"ceiling": "none: no budget limits this run" if limit is None else f"{usd(limit)}, by the budget"}


def _storage_rows(price: Mapping[str, Any]) -> dict[str, str]:
    rows = {}
    disk, storage = price.get("disk"), price.get("storage")
    if disk:
        rows["disk"] = f"{disk['gb']:g} GB, {usd(disk['usd_per_month'])} a month while it exists"
    if storage:
        kept = f"{storage['checkpoints']} checkpoints and the export, {storage['gb']:g} GB"
        rows["storage"] = f"{kept}, {usd(storage['usd_per_month'])} a month until deleted"
    return rows


def accelerator_table(price: Mapping[str, Any]) -> str:
    """Format the table of hours and cost on common accelerators."""
    rows = [
        (row["accelerator"], row["machine"], f"{row['hours']:.2f}", usd(row["usd"]), usd(row["spot_usd"]), row["basis"])
        for row in price.get("elsewhere", ())
    ]
    if not rows:
        return ""
    text = table(("ON ONE", "MACHINE", "HOURS", "ON DEMAND", "SPOT", ""), rows)
    return "\n".join(f"  {line}" for line in text.splitlines())
