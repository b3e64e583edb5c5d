"""Notifications of a run's end: a Slack-compatible webhook, or a command on the machine that watches. Never fatal.

The supervisor posts to the webhook, wherever it runs, so detached runs are announced too. A run that ended without an
`ended` event is announced by the client that first notices.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from headway.core.errors import HeadwayError
from headway.core.types import State
from headway.rundir.status import next_command
from headway.storage.redaction import redact
from headway.storage.secrets import resolve

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.rundir.layout import RunFolder

POST_TIMEOUT_S, COMMAND_TIMEOUT_S = 10.0, 60.0
Log = Callable[[str], None]
_EMOJI = {
    "finished": "✅",
    "failed": "❌",
    "budget": "💰",
    "stopped": "⏸",
    "lost": "❓",
    "stalled": "⏳",
    "waiting": "⏳",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Notification:
    """The message to send. Holds no secrets: reasons have been through the log's redaction."""

    event: str  # finished, failed, budget, stopped, lost; while it runs: stalled, waiting
    run: str
    job: str
    target: str
    url: str
    reason: str
    seconds: float
    usd: float | None = None
    next: str = ""

    @classmethod
    def for_run(
        cls, folder: RunFolder, plan: Plan, event: str, reason: str, seconds: float, usd: float | None = None
    ) -> Notification:
        return cls(
            event=event,
            run=folder.name,
            job=str(plan.job.get("name", "")),
            target=plan.target,
            url=folder.url,
            reason=reason,
            seconds=round(seconds, 1),
            usd=None if usd is None else round(usd, 2),
            next=_next_command(folder, plan, event),
        )

    @property
    def text(self) -> str:
        cost = "" if self.usd is None else f", ${self.usd:.2f}"
        hours = f"{self.seconds / 3600:.1f} h" if self.seconds >= 3600 else f"{self.seconds / 60:.0f} min"
        reason = f": {self.reason}" if self.reason else ""
        head = f"{_EMOJI.get(self.event, '')} {self.run} on {self.target} {self.event}{reason} ({hours}{cost})"
        return head.strip() + (f"\nnext: {self.next}" if self.next else "")


def _next_command(folder: RunFolder, plan: Plan, event: str) -> str:
    if event in ("stalled", "waiting"):
        return f"headway why {folder.name}"
    try:
        return next_command(folder, plan, State(event))
    except HeadwayError:  # the store does not answer: the message is still worth sending
        return f"headway status {folder.name}"


def notify_from_client(settings: Mapping[str, Any], notification: Notification, *, lost: bool, log: Log) -> None:
    """Notify from the watching machine: run the command; post to the webhook if the run could not do so itself."""
    if settings.get("command"):
        run_command(str(settings["command"]), notification, log)
    if settings.get("webhook") and lost:
        try:
            url = resolve(str(settings["webhook"]))
        except HeadwayError as error:
            log(f"the notification was not sent: {error}")
            return
        post_webhook(url, notification, log)


def post_webhook(url: str, notification: Notification, log: Log) -> None:
    """Post `{"text": …}` with the notice's fields beside it: accepted by Slack, Mattermost and Discord's /slack."""
    from headway.core import http  # costs milliseconds: imported only when needed

    if not url.startswith(("https://", "http://")):
        log("the webhook rejected the notification: notify.webhook is not an http(s) URL")
        return
    message = {"text": notification.text, "headway": asdict(notification)}
    try:
        http.Client(timeout_s=POST_TIMEOUT_S).request("POST", url, json=message).raise_for_status()
    except HeadwayError as error:  # the address is a secret: it is not repeated
        reason = error.reason if isinstance(error, http.ConnectionFailed) else error.problem.what
        log(f"the webhook rejected the notification: {redact(reason, [url])}")


def run_command(command: str, notification: Notification, log: Log) -> None:
    """Run the job file's command with /bin/sh. The notice is passed in environment variables, never in the command."""
    variables = {
        f"HEADWAY_{key.upper()}": "" if value is None else str(value) for key, value in asdict(notification).items()
    }
    try:
        result = subprocess.run(
            ["/bin/sh", "-c", command],
            env={**os.environ, **variables, "HEADWAY_TEXT": notification.text},
            stdin=subprocess.DEVNULL,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if result.returncode:
            log(f"notify.command ended with {result.returncode}")
    except (OSError, subprocess.TimeoutExpired) as error:
        log(f"notify.command could not be run: {error}")
