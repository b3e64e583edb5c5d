"""`headway prices T4`: what an accelerator and its machine cost an hour, in every region. Needs no credentials."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.money import usd
from headway.cli.runs import add_json
from headway.cli.show import as_json, table
from headway.errors import BadInput

if TYPE_CHECKING:
    from headway.price.quote import Quote


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("accelerator", nargs="?", metavar="KIND[:N]", help="T4, L4:2, A100:8, …; left out: all of them")
    parser.add_argument("--region", metavar="R", help="only this region, or those that begin like it: us, europe-west4")
    parser.add_argument("--machine", metavar="M", help="with this machine (default: the usual one for it)")
    parser.add_argument("--vertex", action="store_true", help="with Vertex AI's management fee")
    parser.add_argument("--factor", type=float, metavar="F", help="that fee as a factor (default: 1.15)")
    parser.add_argument("--update", metavar="FILE", help="take a newer table from a file, for all later plans")
    add_json(parser)


def main(args: argparse.Namespace) -> int:
    from headway.price.table import load, update

    if args.update:
        kept = update(Path(args.update))
        print(f"prices of {kept.dated} ({kept.source}) are used from now on")
        if not args.accelerator:
            return 0
    prices = load()
    rows = _rows(args)
    if args.json:
        print(as_json({"dated": prices.dated, "source": prices.source, "factor": _factor(args), "prices": rows}))
        return 0
    cells = [(*_names(row), usd(row["usd_per_hour"]), usd(row["spot_usd_per_hour"])) for row in rows]
    print(table(("ACCELERATOR", "MACHINE", "REGION", "ON DEMAND/h", "SPOT/h"), cells))
    fee = f", × {_factor(args):g} for Vertex's management" if _factor(args) != 1 else ""
    print(
        f"{prices.source}, {prices.dated}: machine and accelerator together{fee}. Disks, storage and traffic are extra."
    )
    return 0


def _names(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["accelerator"], row["machine"], row["region"]


def _factor(args: argparse.Namespace) -> float:
    from headway.price.quote import VERTEX_FACTOR

    if args.factor is not None:
        if args.factor <= 0:
            raise BadInput(f"a factor of {args.factor:g} makes no price", fix="--factor 1.15")
        return float(args.factor)
    return VERTEX_FACTOR if args.vertex else 1.0


def _rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    from headway.price.quote import compare_regions

    if args.accelerator is None:
        found = _cheapest(args)
    else:
        kind, count = _asked(args.accelerator)
        found = compare_regions(kind, count, args.machine)
    found = [quote for quote in found if quote.region.startswith(args.region or "")]
    if not found:
        where = f" in {args.region}" if args.region else ""
        machine = f" with {args.machine}" if args.machine else ""
        raise BadInput(f"no price for {args.accelerator or 'anything'}{machine}{where}", fix="headway prices T4")
    factor = _factor(args)
    return [_plain(quote, factor) for quote in found]


def _cheapest(args: argparse.Namespace) -> list[Quote]:
    """One of each kind, where it is cheapest."""
    from headway.price.quote import compare_regions
    from headway.price.table import ACCELERATOR, load

    prices = load()
    found = []
    for kind in prices.names(ACCELERATOR):
        fewest = min(row.count for row in prices.rows(ACCELERATOR, kind))
        quotes = [q for q in compare_regions(kind, fewest, args.machine) if q.region.startswith(args.region or "")]
        found += quotes[:1]
    return sorted(found, key=lambda quote: quote.price.usd)


def _asked(text: str) -> tuple[str, int]:
    from headway.spec.units import BadUnit, accelerator

    try:
        asked = accelerator(text.upper())
    except BadUnit as error:
        raise BadInput(f"{text!r} is no accelerator: {error}", fix="headway prices lists them") from None
    return asked.kind, asked.count


def _plain(quote: Quote, factor: float) -> dict[str, Any]:
    kind, count = quote.accelerator or ("", 0)
    price = quote.price.times(factor)
    return {
        "accelerator": f"{kind}:{count}",
        "machine": quote.machine,
        "region": quote.region,
        "usd_per_hour": round(price.usd, 5),
        "spot_usd_per_hour": round(price.spot_usd, 5),
    }
