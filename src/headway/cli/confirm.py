"""Ask before a run that costs money."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from headway.cli.money import paid, price_rows
from headway.errors import BadInput

if TYPE_CHECKING:
    from headway.planning.model import Plan


def confirm(plan: Plan, *, yes: bool) -> None:
    """Show what it costs and ask. BadInput where nobody can answer, and on a no: nothing has been spent."""
    if not paid(plan):
        return
    for head, text in price_rows(plan.price).items():
        print(f"  {head:<9} {text}", file=sys.stderr)
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput(f"this run costs money on {plan.target}, and nobody is here to say yes", fix="headway run -y")
    print(f"start it on {plan.target}? [y/N] ", end="", file=sys.stderr, flush=True)
    if not sys.stdin.readline().strip().lower().startswith("y"):
        raise BadInput("not started: nothing was spent", fix="headway run, and answer y")
