"""After the last event: tell who asked to be told, and stay for a while after a failure if that was asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from headway.kept import keep_s
from headway.notify import WEBHOOK, Notice, post
from headway.runtime.node import Node
from headway.runtime.verdict import Outcome
from headway.spent import spent_usd


def tell(node: Node, outcome: Outcome, spent_s: float) -> None:
    """The webhook, unless somebody is waiting for us to be gone."""
    url = node.secrets.variables.get(WEBHOOK)
    if not url or outcome.state == "stopped" or node.stop_at is not None:
        return
    usd = spent_usd(node.plan, spent_s)
    post(url, Notice.of(node.folder, node.plan, outcome.state, outcome.reason, spent_s, usd), node.echo.say)


def stay(node: Node, outcome: Outcome, spent_s: float, nap: Callable[[float], None]) -> None:
    """`--keep-on-failure`: everything stays as it is, so that one can look; a signal ends it, and the budget does."""
    seconds = keep_s(node.plan)
    budget = node.plan.limits.budget_s
    if budget is not None:
        seconds = min(seconds, budget - spent_s)
    if outcome.state != "failed" or seconds <= 0 or node.stop_at is not None:
        return
    until = time.strftime("%H:%M", time.localtime(time.time() + seconds))
    node.echo.say(
        f"kept after the failure until {until} (process {os.getpid()}); headway down {node.folder.name} ends it"
    )
    nap(seconds)
