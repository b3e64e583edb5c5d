"""`headway status`: how a run is doing, and what to type next."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from headway.cli.money import usd
from headway.cli.runs import add_json, add_run, locate
from headway.cli.show import as_json, duration, paint
from headway.resuming import EXACT, in_plan

if TYPE_CHECKING:
    from headway.launcher import Launched
    from headway.runfolder import RunFolder
    from headway.targets.base import Status


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)


def main(args: argparse.Namespace) -> int:
    from headway.cli.attached import say
    from headway.launcher import reach

    launched = reach(locate(args.run), say=say)
    found = facts(launched, launched.status())
    print(as_json(found) if args.json else describe(found))
    return 0


def facts(launched: Launched, status: Status) -> dict[str, Any]:
    from headway.cli.attached import following, recorded_kind
    from headway.cli.links import links

    folder = launched.folder
    events = folder.events()
    saved = [event for event in events if event["kind"] == "checkpoint"]
    return {
        "run": launched.run,
        "url": launched.url,
        "target": launched.handle.target,
        "state": status.state.value,
        "reason": status.reason,
        "resumable": status.state.resumable,
        "resume": recorded_kind(folder),
        "attempts": len([event for event in events if event["kind"] == "attempt"]),
        "checkpoint": saved[-1]["step"] if saved else None,
        "progress": folder.progress(),
        "spent": spent(folder),
        "links": links(launched),
        "next": following(launched, status.state),
    }


def spent(folder: RunFolder) -> dict[str, Any]:
    """Of the budget, over all attempts."""
    from headway.spent import spent_s, spent_usd

    plan, seconds = folder.plan(), spent_s(folder)
    return {"seconds": round(seconds, 1), "usd": spent_usd(plan, seconds), "budget_usd": plan.price.get("ceiling_usd"),
            "budget_s": plan.limits.budget_s}  # fmt: skip


def _spent(found: dict[str, Any]) -> str:
    told = found.get("spent") or {}
    if not found.get("attempts") or told.get("seconds") is None:
        return ""
    limit = f" of {duration(told['budget_s'])}" if told.get("budget_s") else ""
    ceiling = f" of {usd(told['budget_usd'])}" if told.get("budget_usd") else ""
    money = f", {usd(told['usd'])}{ceiling}" if told.get("usd") is not None else ""
    return f"{duration(told['seconds'])}{limit}{money}"


def describe(found: dict[str, Any]) -> str:
    progress = found["progress"] or {}
    steps = f"{progress.get('step', 0)}/{progress['steps']}" if progress.get("steps") else ""
    left = f", {duration(progress['eta_s'])} left" if progress.get("eta_s") and found["state"] == "running" else ""
    rows = {
        "state": found["state"] + (f": {found['reason']}" if found["reason"] else ""),
        "on": found["target"],
        "folder": found["url"],
        "attempts": str(found["attempts"]),
        "step": f"{steps}{left}",
        "saved": "" if found["checkpoint"] is None else f"step {found['checkpoint']}",
        **found["links"],
        "spent": _spent(found),
        "resume": in_plan(found["resume"]) if found["resume"] != EXACT else "",
        "next": found["next"],
    }
    lines = [f"  {key:<9} {text}" for key, text in rows.items() if text]
    return "\n".join([paint(found["run"], "bold"), *lines])
