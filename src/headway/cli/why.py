"""`headway why RUN`: the cause of a failure, the line that shows it, and what to type."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from headway.cli.runs import add_json, add_run, locate
from headway.cli.show import as_json, paint

if TYPE_CHECKING:
    from headway.explain.why import Why


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--rank", type=int, metavar="N", help="look at this rank (default: the first that failed)")
    add_json(parser)


def main(args: argparse.Namespace) -> int:
    from headway.cli.attached import say
    from headway.explain.why import why
    from headway.launcher import reach

    hold = reach(locate(args.run), say=say)
    found = why(hold, hold.target.status(hold.handle), rank=args.rank)
    print(as_json(asdict(found)) if args.json else describe(found))
    return 0


def describe(found: Why) -> str:
    """Three lines where the cause is known; else the last words of one rank."""
    if found.state in ("finished", "running") or (found.state == "pending" and not found.name):
        return f"{found.run} is {found.state}: nothing has failed"
    if found.name:
        rows = {"cause": found.cause, "seen in": found.evidence, "fix": found.fix}
        return "\n".join(f"  {paint(f'{key:<8}', 'bold')} {text}" for key, text in rows.items())
    if found.lines:
        who = "" if found.rank is None else f" of rank {found.rank}, the first that failed"
        return "\n".join([f"  no known failure; the last words{who}:", *(f"    {line}" for line in found.lines)])
    return f"  no known failure, and nothing was printed.   next: headway logs {found.run}"
