"""How a run ended that never said so itself: by its watchdog's word, kept here when its place there is removed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headway import intent
from headway.errors import HeadwayError
from headway.runs import Evidence, evidence
from headway.storage import open_store
from headway.targets.base import Handle, State, Status
from headway.targets.here import folder_of, place_of
from headway.targets.ssh.layout import KIND
from headway.targets.ssh.link import Link
from headway.targets.ssh.mirror import fetch_file

ENDING = "ending.json"


def without_a_farewell(seen: Evidence, states: Sequence[Mapping[str, Any]]) -> Status:
    """Nothing runs, and the run has not said how it ended: the watchdog's word, or none."""
    ended = next((state["exit"] for state in states if state["exit"]), None)
    last = str(states[0]["last"])
    said = f"; it last said: {last}" if last else ""
    if not isinstance(ended, dict):
        what = "the machine was restarted, or everything there was killed" if seen.started else "was never started"
        return Status(state=State.LOST, reason=what + said)
    code, why = int(ended["code"]), str(ended["why"])
    if not seen.started and code != 143:
        reason = f"ended with {code} before its first attempt{said}"
        return Status(state=State.FAILED, reason=reason, exit_code=code)
    state = State.LOST if seen.started else State.STOPPED
    return Status(state=state, reason=f"{why or f'ended with {code} without a last word'}{said}")


def keep(handle: Handle, link: Link, states: Sequence[Mapping[str, Any]]) -> None:
    """Before everything there is removed: what its script printed, and how it ended if the folder does not know."""
    where = link.where
    for node, host in enumerate(link.hosts):
        if states[node]["there"]:
            fetch_file(host, f"{where.place(node)}/start.log", link.here / f"start-{node}.log")
    try:
        seen = evidence(folder_of(handle))
        after = intent.awaited_after(intent.read(folder_of(handle)))
    except HeadwayError:  # no folder, or no way to it: nobody will ask
        return
    if seen.farewell is None and any(state["there"] for state in states):
        status = without_a_farewell(seen, states)
        plain = {"state": status.state.value, "reason": status.reason, "exit_code": status.exit_code, "after": after}
        open_store(str(link.here)).write(ENDING, json.dumps(plain).encode())


def kept(handle: Handle) -> Status | None:
    """What was kept of the last start; None where it is not about that one."""
    try:
        known = json.loads((place_of(handle.url, KIND) / ENDING).read_bytes())
    except (OSError, ValueError):
        return None
    if known["after"] != intent.awaited_after(intent.read(folder_of(handle))):
        return None
    return Status(state=State(known["state"]), reason=known["reason"], exit_code=known["exit_code"])
