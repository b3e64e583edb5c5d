"""intent.json: what is about to be created, written before the first request, so that whatever was can be found.

{"target", "kind", "options", "run", "url", "created_at", "attempts": [{"at", "by", "after"}], "details"}: one entry for
each start asked for. `after` is the newest attempt before it: only a later one answers it.
"""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from headway.core.errors import BadPlan, Conflict, HeadwayError, NotThere, RunBusy, StoreError
from headway.core.paths import home
from headway.core.plan import Plan
from headway.core.types import Handle
from headway.rundir.layout import INTENT, PLAN, RunFolder
from headway.storage import ABSENT, open_store, same_place


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def unix(text: object) -> float:
    """Seconds of a time that `now` wrote; 0 for anything else."""
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def who() -> str:
    return f"{os.environ.get('USER') or os.getuid()}@{socket.gethostname()}"


def announce(folder: RunFolder, plan: Plan) -> dict[str, Any]:
    """Record the first start of a run, before it is made."""
    intent = {**_of_plan(plan, folder), "attempts": [_start(after=0)]}
    folder.create_json(INTENT, intent)
    return intent


def announce_again(folder: RunFolder, *, after: int, plan: Plan | None = None, code: str = "recorded") -> None:
    """Record another start, with `plan` on another target than before. Of two at once, one is RunBusy."""
    try:
        version = folder.store.stat(INTENT).version
        intent = read(folder)
    except NotThere:
        version, intent = ABSENT, read(folder)
    start = _start(after=after)
    if origin(folder, intent):  # what its details name belongs to the folder of which this is a copy
        intent = {**intent, "run": folder.name, "url": folder.url, "details": {}}
    if plan is not None:
        moved = {"target": plan.target, "kind": plan.kind, "options": dict(plan.options)}
        intent = {**intent, **moved, "url": folder.url, "details": {}}
        start |= {"target": plan.target, "code": plan.code.sha256, "code_is": code}
    intent = {**intent, "attempts": [*intent.get("attempts", []), start]}
    try:
        folder.write_json(INTENT, intent, when=version)
    except Conflict:
        raise RunBusy(f"somebody else is starting {folder.name}", fix=f"headway status {folder.name}") from None


def withdraw(folder: RunFolder, why: BaseException) -> None:
    """The last start failed and left nothing: the run stands where it stood before."""
    intent = read(folder)
    intent["attempts"][-1]["failed"] = str(why) or type(why).__name__
    folder.write_json(INTENT, intent)


def keep(folder: RunFolder, handle: Handle) -> None:
    folder.write_json(INTENT, {**read(folder), "details": dict(handle.details)})


def read(folder: RunFolder) -> dict[str, Any]:
    """The record; where the launcher was killed before writing it, or it is damaged, as much as the plan says."""
    try:
        intent = folder.read_json(INTENT)
        if intent is not None and _whole(intent):
            return intent
    except BadPlan:
        pass  # the plan is whole, or its own damage is what gets said
    return {**_of_plan(folder.plan(), folder), "attempts": []}


def _whole(intent: dict[str, Any]) -> bool:
    """Whether everything is there that a reader relies on."""
    starts = intent.get("attempts")
    return (
        all(isinstance(intent.get(key), str) for key in ("target", "kind"))
        and isinstance(intent.get("options"), dict)
        and isinstance(starts, list)
        and all(isinstance(start, dict) and type(start.get("after")) is int for start in starts)
    )


def attempts_before(intent: dict[str, Any]) -> int:
    """The newest attempt at the time of the last start that was not withdrawn."""
    starts = [entry for entry in intent["attempts"] if not entry.get("failed")]
    return int(starts[-1]["after"]) if starts else 0


def origin(folder: RunFolder, intent: dict[str, Any] | None = None) -> str:
    """The folder for which the record was written; empty where it is this one, however its path is spelled.

    Another one: this folder was copied or moved since its last start, or is seen here under another path.
    """
    try:
        url = str((read(folder) if intent is None else intent).get("url") or "")
    except HeadwayError:  # no record to go by
        return ""
    return "" if not url or same_place(url, folder.url) else url


def copied_from(folder: RunFolder, intent: dict[str, Any] | None = None) -> str:
    """The folder of which this one is certainly a copy: its record names it, and it is still there. Else empty."""
    there = origin(folder, intent)
    return there if there and is_run(there) else ""


def is_run(url: str) -> bool:
    """Whether a run folder can be seen there."""
    try:
        open_store(url).stat(PLAN)
    except HeadwayError:
        return False
    return True


def _of_plan(plan: Plan, folder: RunFolder) -> dict[str, Any]:
    return {
        "target": plan.target,
        "kind": plan.kind,
        "options": dict(plan.options),
        "run": folder.name,
        "url": folder.url,
        "created_at": now(),
    }


def _start(*, after: int) -> dict[str, Any]:
    return {"at": now(), "by": who(), "after": after}


# Whose something is: an id of this user's Headway, made once in its home folder, and a name for people to read.


FILE = "owner"


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """What `headway gc` goes by: it removes nothing that carries another owner's id."""

    id: str  # 16 hexadecimal digits: fits every target's labels; empty where none could be kept
    name: str  # alice@host-7


def owner() -> Owner:
    """Us. Makes the id at the first call; where the home folder cannot be written there is none, and that is logged."""
    return Owner(id=known_id() or _made(), name=who())


def known_id() -> str:
    """Our id; empty where nothing was ever started from this home folder."""
    try:
        return (home() / FILE).read_text().strip()
    except (OSError, ValueError):
        return ""


def _made() -> str:
    """A new id, kept. Of two processes at once, both take the one that was first."""
    try:
        open_store(str(home())).write(FILE, f"{os.urandom(8).hex()}\n".encode(), when=ABSENT)
    except Conflict:
        pass  # another process was quicker
    except StoreError as error:
        logging.getLogger("headway").warning(
            f"what this run makes cannot be marked as yours, so headway gc will not remove it: {error}"
        )
    return known_id()
