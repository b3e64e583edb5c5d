"""teardown.json: what was created, what was removed, and what a second listing found (empty `left`: nothing).

Also `--keep-on-failure 60m`: after a failure, the run's machines stay up for that long for inspection. The supervisor
waits that long after recording how the run ended, so billing stops without anybody's help.
"""

from __future__ import annotations

import time
from typing import Any

from headway.core.errors import BadPlan, HeadwayError
from headway.core.plan import Plan
from headway.core.types import Receipt
from headway.rundir.layout import RECEIPT, RunFolder
from headway.rundir.lease import spent_s, usd_per_hour
from headway.rundir.status import newest_attempt
from headway.rundir.submission import copied_from, read, unix_seconds, user_at_host, utc_now

KEEP_VARIABLE = "HEADWAY_KEEP_ON_FAILURE_S"  # in the plan's variables; read by the supervisor


def keep_on_failure_s(plan: Plan) -> float:
    try:
        return max(0.0, float(plan.job.get("env", {}).get(KEEP_VARIABLE, 0.0)))
    except ValueError:
        return 0.0


def kept_until(folder: RunFolder, *, now: float | None = None) -> float | None:
    """Return the Unix time until which a failed run's machines are kept; None if they are not, or no longer."""
    try:
        plan, ended, spent = folder.plan(), folder.ended(), spent_s(folder)
    except HeadwayError:
        return None
    seconds = keep_on_failure_s(plan)
    if not seconds or ended is None or ended.get("state") != "failed" or copied_from(folder):
        return None
    until = unix_seconds(ended.get("time")) + _within_budget(seconds, plan, spent)
    return until if until > (time.time() if now is None else now) else None


def _within_budget(seconds: float, plan: Plan, spent: float) -> float:
    """Limit the time to what is left of the budget."""
    budget = plan.limits.budget_s
    return seconds if budget is None else max(0.0, min(seconds, budget - spent))


def describe_kept(folder: RunFolder, until: float) -> str:
    """Describe a kept run for the user: until when, at what cost, and how to end it."""
    left = max(0.0, until - time.time())
    rate = usd_per_hour(folder.plan())
    cost = f", at most ${left / 3600 * rate:.2f} more" if rate else ""
    clock = time.strftime("%H:%M", time.localtime(until))
    end = f"to remove it now: headway down {folder.name}"
    return f"{folder.name} is kept until {clock} ({left / 60:.0f} min{cost}).   {end}"


def complete_receipt(folder: RunFolder) -> Receipt | None:
    """Return the receipt of the newest attempt and start, if one was written and nothing was left."""
    record = _read_record(folder)
    if record is None or record["left"] or record["attempt"] < newest_attempt(folder):
        return None
    if record.get("starts", _starts(folder)) != _starts(folder):  # submitted again since, even if nothing has begun
        return None
    return _receipt(record)


def write(folder: RunFolder, receipt: Receipt) -> Receipt:
    """Write the receipt into the run folder, merged with an earlier one of the same attempt."""
    attempt = newest_attempt(folder)
    known = _read_record(folder)
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
        "starts": _starts(folder),
        "created": list(receipt.created),
        "removed": list(receipt.removed),
        "left": list(receipt.left),
        "unverified": list(receipt.unverified),
        "at": utc_now(),
        "by": user_at_host(),
    }
    folder.write_json(RECEIPT, record)
    return receipt


def _starts(folder: RunFolder) -> int:
    """Return how many starts were requested; 0 if the record is damaged."""
    try:
        return len(read(folder)["attempts"])
    except HeadwayError:
        return 0


def _read_record(folder: RunFolder) -> dict[str, Any] | None:
    try:
        record = folder.read_json(RECEIPT)
    except BadPlan:  # damaged: callers list again and write a complete one
        return None
    return record if record and record.keys() >= {"run", "attempt", "created", "removed", "left"} else None


def _receipt(record: dict[str, Any]) -> Receipt:
    return Receipt(
        run=record["run"],
        created=tuple(record["created"]),
        removed=tuple(record["removed"]),
        left=tuple(record["left"]),
        unverified=tuple(record.get("unverified", ())),
    )


def _union(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
