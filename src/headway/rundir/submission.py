"""intent.json: what is about to be created, written before the first request, so that everything created can be found.

{"target", "kind", "options", "run", "url", "created_at", "attempts": [{"at", "by", "after"}], "details"}: one entry per
requested start. `after` is the newest attempt before it: only a later attempt belongs to that start.
Also the owner id that marks what this user's Headway creates.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from headway.core.errors import BadPlan, Conflict, HeadwayError, NotThere, RunBusy, StoreError
from headway.core.plan import Plan
from headway.core.platform import state_dir
from headway.core.types import Handle
from headway.rundir.layout import PLAN, SUBMISSION, RunFolder
from headway.storage import ABSENT, is_same_folder, open_store


def utc_now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def unix_seconds(text: object) -> float:
    """Parse a time that `utc_now` wrote into Unix seconds; 0 for anything else."""
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def user_at_host() -> str:
    return f"{os.environ.get('USER') or os.getuid()}@{socket.gethostname()}"


def record_submission(folder: RunFolder, plan: Plan) -> dict[str, Any]:
    """Record the first start of a run before it is submitted."""
    intent = {**_intent_from_plan(plan, folder), "attempts": [_submission_entry(after=0)]}
    folder.create_json(SUBMISSION, intent)
    return intent


def record_resubmission(
    folder: RunFolder,
    *,
    after: int,
    plan: Plan | None = None,
    code: str = "recorded",
    changed: Sequence[str] = (),
) -> None:
    """Record another start. Of two at once, one raises RunBusy.

    `plan` is given if it is on another target or with the current code; `changed` are the files that differ in it.
    """
    try:
        version = folder.store.stat(SUBMISSION).version
        intent = read(folder)
    except NotThere:
        version, intent = ABSENT, read(folder)
    entry = _submission_entry(after=after)
    if origin_url(folder, intent):  # this folder is a copy: the details name the original's resources
        intent = {**intent, "run": folder.name, "url": folder.url, "details": {}}
    if plan is not None:
        target_fields = {"target": plan.target, "kind": plan.kind, "options": dict(plan.options)}
        intent = {**intent, **target_fields, "url": folder.url, "details": {}}
        entry |= {"target": plan.target, "code": plan.code.sha256, "code_is": code}
        entry |= {"changed": list(changed)} if changed else {}
    intent = {**intent, "attempts": [*intent.get("attempts", []), entry]}
    try:
        folder.write_json(SUBMISSION, intent, when=version)
    except Conflict:
        raise RunBusy(f"another process is starting {folder.name}", fix=f"headway status {folder.name}") from None


def record_failed_submission(folder: RunFolder, why: BaseException) -> None:
    """Mark the last start as failed with nothing left, so that the run's state is as it was before."""
    intent = read(folder)
    intent["attempts"][-1]["failed"] = str(why) or type(why).__name__
    folder.write_json(SUBMISSION, intent)


def save_handle_details(folder: RunFolder, handle: Handle) -> None:
    folder.write_json(SUBMISSION, {**read(folder), "details": dict(handle.details)})


def read(folder: RunFolder) -> dict[str, Any]:
    """Read the record; if it is missing (the launcher was killed first) or damaged, rebuild it from the plan."""
    try:
        intent = folder.read_json(SUBMISSION)
        if intent is not None and _is_complete(intent):
            return intent
    except BadPlan:
        pass  # rebuild it from the plan; if that is damaged too, reading it raises
    return {**_intent_from_plan(folder.plan(), folder), "attempts": []}


def _is_complete(intent: dict[str, Any]) -> bool:
    """Return whether all required fields are present and well-formed."""
    starts = intent.get("attempts")
    return (
        all(isinstance(intent.get(key), str) for key in ("target", "kind"))
        and all(isinstance(intent.get(key, ""), str) for key in ("run", "url", "created_at"))
        and isinstance(intent.get("options"), dict)
        and isinstance(intent.get("details", {}), dict)
        and isinstance(starts, list)
        and all(isinstance(start, dict) and type(start.get("after")) is int for start in starts)
    )


def code_changes(intent: dict[str, Any]) -> list[tuple[int, list[str]]]:
    """Return the first attempt that ran changed code, and the changed files, for each change of code."""
    starts = [entry for entry in intent["attempts"] if not entry.get("failed") and entry.get("changed")]
    return [(int(entry["after"]) + 1, [str(name) for name in entry["changed"]]) for entry in starts]


def attempts_before(intent: dict[str, Any]) -> int:
    """Return the newest attempt at the time of the last start that was not withdrawn."""
    starts = [entry for entry in intent["attempts"] if not entry.get("failed")]
    return int(starts[-1]["after"]) if starts else 0


def origin_url(folder: RunFolder, intent: dict[str, Any] | None = None) -> str:
    """Return the folder for which the record was written; empty if it is this one, however its path is spelled.

    It is another one if this folder was copied or moved since its last start, or is mounted here under another path.
    """
    try:
        url = str((read(folder) if intent is None else intent).get("url") or "")
    except HeadwayError:  # no record
        return ""
    return "" if not url or is_same_folder(url, folder.url) else url


def copied_from(folder: RunFolder, intent: dict[str, Any] | None = None) -> str:
    """Return the folder of which this one is certainly a copy: the record names it and it still exists. Else empty."""
    url = origin_url(folder, intent)
    return url if url and is_run(url) else ""


def is_run(url: str) -> bool:
    """Return whether there is a readable run folder at `url`."""
    try:
        open_store(url).stat(PLAN)
    except HeadwayError:
        return False
    return True


def _intent_from_plan(plan: Plan, folder: RunFolder) -> dict[str, Any]:
    return {
        "target": plan.target,
        "kind": plan.kind,
        "options": dict(plan.options),
        "run": folder.name,
        "url": folder.url,
        "created_at": utc_now(),
    }


def _submission_entry(*, after: int) -> dict[str, Any]:
    return {"at": utc_now(), "by": user_at_host(), "after": after}


# Owner: an id per Headway state folder, made once, and a readable name


OWNER_FILE = "owner"


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """The owner of a resource. `headway gc` removes nothing that carries another owner's id."""

    id: str  # 16 hexadecimal digits: valid as a label on every target; empty if none could be stored
    name: str  # alice@host-7


def owner() -> Owner:
    """Return this user's owner, making the id at the first call. If it cannot be stored, logs that; the id is empty."""
    return Owner(id=owner_id() or _create_owner_id(), name=user_at_host())


def owner_id() -> str:
    """Return our id; empty if nothing was ever started from this state folder."""
    try:
        return (state_dir() / OWNER_FILE).read_text().strip()
    except (OSError, ValueError):
        return ""


def _create_owner_id() -> str:
    """Make and store a new id. Of two processes at once, both take the one written first."""
    try:
        open_store(str(state_dir())).write(OWNER_FILE, f"{os.urandom(8).hex()}\n".encode(), when=ABSENT)
    except Conflict:
        pass  # another process was faster
    except StoreError as error:
        import logging

        logging.getLogger("headway").warning(
            f"the owner label could not be set, so headway gc will not remove what this run creates: {error}"
        )
    return owner_id()
