"""`headway ps`: runs, newest first. The index makes it fast; what has not ended is looked up in its folder."""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from headway.cli.bars import working
from headway.cli.runs import add_json
from headway.cli.show import ago, as_json, paint, table
from headway.errors import BadPlan, HeadwayError

if TYPE_CHECKING:
    from headway.ledger import Row

_RED = ("failed", "lost", "damaged")
COLOURS = {"running": "blue", "finished": "green", "stopped": "yellow", **dict.fromkeys(_RED, "red")}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="GLOB", help="only runs with such a name: 'captions-*'")
    parser.add_argument("--on", metavar="TARGET", help="only runs on this target")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="default: 20")
    parser.add_argument("--rebuild", metavar="OUTPUTS", help="list every run found below this folder or URL again")
    add_json(parser)


def main(args: argparse.Namespace) -> int:
    from headway.ledger import Ledger

    ledger = Ledger()
    if args.rebuild:
        with working(f"looking through {args.rebuild}"):
            found = ledger.rebuild(args.rebuild)
        print(f"{found} runs found below {args.rebuild}")
    rows = ledger.rows(glob=args.name, target=args.on, limit=args.limit)
    with ThreadPoolExecutor(8) as pool:  # each look is a round trip where the folder is in a bucket
        rows = list(pool.map(refreshed, rows))
    if args.json:
        print(as_json([asdict(row) for row in rows]))
    elif rows:
        now = time.time()
        cells = [(row.name, row.state, row.target, ago(row.created, now), row.url) for row in rows]
        text = table(("NAME", "STATE", "ON", "STARTED", "FOLDER"), cells)
        for state, colour in COLOURS.items():
            text = text.replace(f"  {state}", f"  {paint(state, colour)}")
        print(text)
    else:
        print("no runs here yet.   next: headway init && headway run")
    return 0


def refreshed(row: Row) -> Row:
    """The row as it is now. An ended run is not looked up again; one that is seen to have ended is settled."""
    from headway.cli.attached import say
    from headway.launcher import observe
    from headway.targets.base import State

    if State(row.state).ended and State(row.state) is not State.LOST:
        return row
    try:
        return replace(row, state=observe(row.url).status.state.value)
    except BadPlan as error:
        say(f"{row.name} is damaged: {str(error).splitlines()[0]}")
        return replace(row, state="damaged")
    except HeadwayError:  # out of reach, or deleted: that it was there is still worth showing
        return replace(row, state="gone")
