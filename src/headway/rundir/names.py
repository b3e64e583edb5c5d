"""What runs are called: names that every target, bucket and file system takes as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

from headway.core.errors import BadInput
from headway.core.plan import Plan
from headway.rundir.index import Ledger

LONGEST = 50  # a StatefulSet's pods, a label's value and a socket's path all still fit
RESERVED = ("code", "last")  # a folder beside the runs, and a word that means a run
_NAME = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?")


def checked_name(name: str) -> str:
    """The name itself, or a BadInput that says what is wrong with it."""
    fix = f"lower case letters, digits and dashes, at most {LONGEST}, starting with a letter"
    if name in RESERVED:
        raise BadInput(f"a run cannot be called {name!r}: the word is taken", fix="another --name")
    if len(name) > LONGEST or not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} cannot name a run", fix=f"--name with {fix}")
    return name


def candidates(plan: Plan, ledger: Ledger) -> Iterator[str]:
    """`<job>-<plan hash>-1`, `-2`, …, from the first that this machine's index does not know."""
    tail_room = len("-123456-12345")
    job = str(plan.job["name"])[: LONGEST - tail_room].rstrip("-")
    stem = f"{job}-{plan.hash[:6]}-"
    known = [row.name[len(stem) :] for row in ledger.named(stem)]
    first = 1 + max((int(number) for number in known if number.isdigit()), default=0)
    return (f"{stem}{number}" for number in count(first))
