"""teardown.json: what was created, what was removed, and what a second look found. An empty `left`: nothing is left."""

from __future__ import annotations

from typing import Any

from headway.core.errors import BadPlan
from headway.core.types import Receipt
from headway.rundir.layout import RECEIPT, RunFolder
from headway.rundir.status import newest_attempt
from headway.rundir.submission import now, who


def written(folder: RunFolder) -> Receipt | None:
    """The receipt of the newest attempt, if one was written and nothing was left."""
    known = _known(folder)
    if known is None or known["left"] or known["attempt"] < newest_attempt(folder):
        return None
    return _receipt(known)


def write(folder: RunFolder, receipt: Receipt) -> Receipt:
    """Put it into the run's folder. A second one for the same attempt adds to the first."""
    attempt = newest_attempt(folder)
    known = _known(folder)
    if known is not None and known["attempt"] == attempt:
        earlier = _receipt(known)
        receipt = Receipt(
            run=receipt.run,
            created=_union(earlier.created, receipt.created),
            removed=tuple(name for name in _union(earlier.removed, receipt.removed) if name not in receipt.left),
            left=receipt.left,
            unverified=receipt.unverified,
        )
    record = {
        "run": receipt.run,
        "attempt": attempt,
        "created": list(receipt.created),
        "removed": list(receipt.removed),
        "left": list(receipt.left),
        "unverified": list(receipt.unverified),
        "at": now(),
        "by": who(),
    }
    folder.write_json(RECEIPT, record)
    return receipt


def _known(folder: RunFolder) -> dict[str, Any] | None:
    try:
        known = folder.read_json(RECEIPT)
    except BadPlan:  # damaged: whoever asks looks again, and writes a whole one
        return None
    return known if known and known.keys() >= {"run", "attempt", "created", "removed", "left"} else None


def _receipt(known: dict[str, Any]) -> Receipt:
    return Receipt(
        run=known["run"],
        created=tuple(known["created"]),
        removed=tuple(known["removed"]),
        left=tuple(known["left"]),
        unverified=tuple(known.get("unverified", ())),
    )


def _union(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
