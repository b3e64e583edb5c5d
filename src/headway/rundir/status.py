"""Find a run and determine its status from its folder alone, without asking a target or spending anything.

Also the helpers that targets share: paths on this machine, end-of-run checks, freeing a dead holder's lease.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headway.core.errors import BadPlan, HeadwayError, Problem, UnknownRun, json_of
from headway.core.plan import BEGINNING, describe_next_start
from headway.core.platform import state_dir
from headway.core.types import Handle, State, Status
from headway.plugins import TARGETS
from headway.rundir import lease, submission
from headway.rundir.index import RunIndex, RunRow
from headway.rundir.layout import BUNDLE, PLAN, RECEIPT, REPORT, RunFolder, read_lines, segments
from headway.rundir.lease import usd_per_hour
from headway.storage import Store, join, local_path, open_store, require_url, subfolders

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.spec import Job


def next_command(folder: RunFolder, plan: Plan, state: State) -> str:
    """Return the command that a user most likely wants next; "" if there is none."""
    run = folder.name
    if not state.ended:
        return f"headway logs {run} -f"
    if state is State.FAILED:
        return f"headway why {run}"
    if state is State.BUDGET and plan.limits.budget_s:
        return f"headway resume {run} --budget-hours {plan.limits.budget_s / 3600 * 2:.4g}"
    if state.resumable:
        return f"headway resume {run}" + (" --from-beginning" if plan.resume == BEGINNING else "")
    if plan.job.get("recipe") and folder.read_json(REPORT) is None:
        return f"headway eval {run}"
    if any(entry.key == BUNDLE for entry in folder.store.list(BUNDLE)):
        return f"headway serve {run}"
    return "" if local_path(folder.url) is not None else f"headway pull {run}"


LAST = "last"
MAX_SHOWN = 10  # candidates listed in an error message


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRef:
    """A reference to a run by name and URL. Opening it shows whether its folder is complete."""

    name: str
    url: str

    def open(self) -> RunFolder:
        return RunFolder(open_store(self.url))


def find(text: str, *, index: RunIndex | None = None, outputs: Sequence[str] = ("runs",)) -> RunRef:
    """Find the run for a name, a unique prefix, `last`, a folder or a URL.

    Names are looked up in this machine's index, then as folders below `outputs`.
    """
    require_url(text)
    if "://" in text:
        return _ref_from_url(text)
    if "/" in text or text.startswith((".", "~")):
        return _ref_from_folder(Path(text).expanduser())
    index = index or RunIndex()
    if text == LAST:
        return _last(index)
    rows = index.with_prefix(text)
    exact = [row for row in rows if row.name == text]
    known = _existing_rows(exact or rows)
    if len(known) == 1:
        return _ref_from_row(known[0])
    if known:
        raise _ambiguous(text, known)
    for path in (*(Path(output) / text for output in outputs if "://" not in output), Path(text)):
        if (path / PLAN).is_file():
            return _ref_from_folder(path)
    if exact:  # never fall back to another run whose name has this one as a prefix
        raise UnknownRun(f"the folder of {text} does not exist: {exact[0].url}", fix="headway ps")
    raise _unknown(text, index)


def _last(index: RunIndex) -> RunRef:
    rows = _existing_rows(index.rows(limit=MAX_SHOWN))
    if not rows:
        raise UnknownRun("no run has been started from this machine yet", fix="headway run, or give a run folder")
    return _ref_from_row(rows[0])


def _ref_from_url(url: str) -> RunRef:
    store = open_store(url)
    return RunRef(name=RunFolder(store).name, url=store.url)


def _ref_from_folder(path: Path) -> RunRef:
    if not (path / PLAN).is_file():
        what = "is not a run folder: it has no plan.json" if path.is_dir() else "does not exist"
        raise UnknownRun(f"{path} {what}", fix="headway ps")
    return _ref_from_url(str(path.resolve()))


def _ref_from_row(row: RunRow) -> RunRef:
    return RunRef(name=row.name, url=row.url)


def _existing_rows(rows: Iterable[RunRow]) -> list[RunRow]:
    """Leave out runs whose folder was on this machine and has been deleted."""
    return [row for row in rows if (path := local_path(row.url)) is None or (path / PLAN).is_file()]


def _ambiguous(text: str, rows: list[RunRow]) -> UnknownRun:
    named = [row.name for row in rows]
    shown = named if len(set(named)) == len(named) else [row.url for row in rows]
    more = f" and {len(shown) - MAX_SHOWN} more" if len(shown) > MAX_SHOWN else ""
    return UnknownRun(
        f"{text!r} matches {', '.join(shown[:MAX_SHOWN])}{more}", fix="type more of the name, or the folder"
    )


def _unknown(text: str, index: RunIndex) -> UnknownRun:
    from difflib import get_close_matches

    names = list(dict.fromkeys(row.name for row in index.rows(limit=1000)))
    close = get_close_matches(text, names, n=3)
    fix = f"did you mean {' or '.join(close)}? headway ps lists them" if close else "headway ps"
    return UnknownRun(f"there is no run named {text!r}", fix=fix)


def rows_below(outputs: str) -> Iterator[RunRow]:
    """Yield an index row for every run in this folder or bucket. Unreadable runs are skipped."""
    root = open_store(outputs)
    rows = (row_of(RunFolder(open_store(join(root.url, name)))) for name in subfolders(root))
    yield from (row for row in rows if row is not None)


def row_of(folder: RunFolder) -> RunRow | None:
    """Return the run's index row; None for an incomplete or foreign folder (the index does not report errors)."""
    try:
        plan, known, status = folder.plan(), submission.read(folder), folder_status(folder)
    except (HeadwayError, ValueError):
        return None
    return RunRow(
        name=folder.name,
        url=folder.url,
        target=plan.target,
        job=str(plan.job.get("name", "")),
        created=submission.unix_seconds(known.get("created_at")),
        state=status.state.value,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusInputs:
    """The facts in a run's folder that determine its status. `end` is the newest attempt's recorded end."""

    end: Status | None
    started: bool  # an attempt has begun since the last submission
    lease: lease.LeaseRecord | None


def read_status_inputs(folder: RunFolder) -> StatusInputs:
    """Read the status inputs, the lease before the events: in that order an end cannot be missed."""
    record, _ = lease.read(folder.store)
    after = submission.attempts_before(submission.read(folder))
    newest, event = _newest_end_event(folder.store, record.attempt if record else 0)
    started = newest > after
    return StatusInputs(
        end=_status_of_end_event(event, folder) if event and started else None, started=started, lease=record
    )


def folder_status(folder: RunFolder) -> Status:
    """Return the run's status as far as its folder shows it."""
    inputs = read_status_inputs(folder)
    if inputs.end is not None:
        return inputs.end
    if not inputs.started or inputs.lease is None:
        if was_taken_down_before_start(folder):
            return TAKEN_DOWN
        return Status(state=State.PENDING, reason="submitted, not started yet")
    if inputs.lease.holder is None:
        return Status(state=State.LOST, reason="released the run without reporting how it ended")
    alive = inputs.lease.alive_at(folder.url)
    # A working copy on a remote host names the client's folder too, and is run by its own supervisor.
    original = "" if inputs.lease.labelled_at(folder.url) else submission.copied_from(folder)
    if original:  # the lease belongs to the original: nobody has started this copy
        return Status(state=State.LOST, reason=f"this folder is a copy of {original}; no process belongs to it")
    if alive is False:
        return Status(state=State.LOST, reason=f"killed: process {inputs.lease.pid} ended without reporting why")
    where = "" if alive else f"on {inputs.lease.host}, which is not visible from here"
    return Status(state=State.RUNNING, reason=where)


TAKEN_DOWN = Status(state=State.STOPPED, reason="taken down before it began")


def was_taken_down_before_start(folder: RunFolder) -> bool:
    """Return whether the last start was taken down, with a complete receipt, before any attempt began."""
    try:
        receipt = folder.read_json(RECEIPT)
        starts = len(submission.read(folder)["attempts"])
        if not receipt or receipt.get("left") or not starts or receipt.get("starts") != starts:
            return False
        return not read_status_inputs(folder).started
    except HeadwayError:
        return False


def status_without_target(handle: Handle, problem: str) -> Status:
    """Return the status from the run folder alone if the target cannot be asked: before a start it tells nothing."""
    status = StatusPoller(folder_of(handle)).status()
    if status.state is State.PENDING:
        return Status(state=State.UNKNOWN, reason=problem)
    return replace(status, reason="; ".join(filter(None, (status.reason, problem))))


class StatusPoller:
    """`folder_status`, polled: also notices a lease that is no longer renewed."""

    def __init__(
        self, folder: RunFolder, *, stale_s: float = lease.STALE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._stale_s, self._clock = folder, stale_s, clock
        self._version, self._since = "", clock()

    def status(self) -> Status:
        status = folder_status(self._folder)
        if status.state is not State.RUNNING:
            return status
        record, version = lease.read(self._folder.store)
        if version != self._version:
            self._version, self._since = version, self._clock()
        quiet_s = self._clock() - self._since
        if quiet_s < self._stale_s or record is None or record.alive_at(self._folder.url):
            return status
        return Status(state=State.LOST, reason=f"no heartbeat from {record.host} for {quiet_s:.0f} s")


def newest_attempt(folder: RunFolder) -> int:
    record, _ = lease.read(folder.store)
    return _newest_end_event(folder.store, record.attempt if record else 0)[0]


def _newest_end_event(store: Store, lease_attempt: int) -> tuple[int, dict[str, Any] | None]:
    """Return the newest attempt, and its `ended` event if any. Reads one segment per writer, however long the run."""
    event_segments = segments(store, "events")
    newest = max([lease_attempt, *(segment.attempt for segment in event_segments)])
    final = {segment.writer: segment for segment in event_segments if segment.attempt == newest}
    for segment in final.values():
        for line in reversed(list(read_lines(store, segment))):
            event = _event(line, f"{store.url}/{segment.key}")
            if event.get("kind") == "ended":
                return newest, event
    return newest, None


def _event(line: str, where: str) -> dict[str, Any]:
    """Parse one event; {} for JSON that is not an object (not ours). Raises BadPlan for a line that is not JSON."""
    try:
        event = json_of(line)
    except ValueError as error:
        raise BadPlan(f"a record is damaged: {error}", where=where, fix="restore the file, or remove it") from None
    return event if isinstance(event, dict) else {}


def _status_of_end_event(event: dict[str, Any], folder: RunFolder) -> Status:
    try:
        state = State(event["state"])
    except (KeyError, ValueError):
        raise BadPlan(f"a state that this version of Headway does not know: {event}", where=folder.url) from None
    return Status(state=state, reason=str(event.get("reason") or ""), exit_code=event.get("exit_code"))


# Shared by targets on this machine


GRACE_S = 30.0  # grace period where the plan cannot be read
END_RECORD_S = 10.0  # beyond the grace period, for a supervisor that writes its last records to a slow disk
PROCESS_EXIT_S = 3.0  # for the remaining processes of a run that has recorded its end


def run_url(outputs: str, run: str) -> str:
    """Return a run folder's canonical URL: it is used as a label, and labels are compared."""
    folder = local_path(join(outputs, run))
    return join(outputs, run) if folder is None else str(folder)


def folder_of(handle: Handle) -> RunFolder:
    return RunFolder(open_store(handle.url))


def local_dir(url: str, kind: str) -> Path:
    """Return where a run keeps local files: in its folder, or in our state folder if its folder is in a bucket."""
    folder = local_path(url)
    if folder is not None:
        return folder / kind
    outputs, _, run = url.rpartition("/")
    return state_dir() / kind / hashlib.sha256(outputs.encode()).hexdigest()[:8] / run


def is_local_key(key: str) -> bool:
    """Return whether a key of a run folder belongs to a target's files of one machine (`local_dir`), not to the run."""
    return key.partition("/")[0] in TARGETS


def output_problems(outputs: str) -> list[Problem]:
    folder = local_path(outputs)
    if folder is None:
        return []  # a bucket is checked at launch, before anything is started: checking here would need credentials
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return []
    what = f"{existing} is not writable" if existing.is_dir() else f"{existing} is a file"
    return [Problem(what=what, where="outputs", fix="set `outputs` to a folder that you can write to")]


def has_ended(handle: Handle) -> bool:
    try:
        return read_status_inputs(folder_of(handle)).end is not None
    except HeadwayError:  # no folder, or not reachable: processes on this machine must be stoppable all the same
        return False


def grace_s(handle: Handle) -> float:
    try:
        return folder_of(handle).plan().limits.grace_s
    except HeadwayError:
        return GRACE_S


def key_file_notes(job: Job) -> Iterator[str]:
    """Note key files: a key stays valid for years wherever it is copied; a cloud machine's own identity does not."""
    for name, secret in job.secrets.items():
        if secret.as_ == "file" and "CREDENTIALS" in name:
            yield f"secrets.{name}: a key file works; a machine of that cloud has its own identity and needs none"


# Shared by targets whose processes run on other machines


FINAL_STATES: Final = (State.FINISHED, State.FAILED, State.BUDGET)  # final: the platform does not restart these


def end_check(
    handle: Handle,
    status: Callable[[Handle], Status],
    *,
    folder_poll_s: float,
    status_poll_s: float,
    hint: Callable[[], bool] = lambda: False,
) -> Callable[[], bool]:
    """Return a function that tells whether the run has ended.

    It reads the folder every `folder_poll_s` and calls `status` every `status_poll_s`, which is longer because the API
    behind it is shared with others. `hint` tells cheaply that calling `status` sooner is worthwhile.
    """
    folder_read_at = status_read_at = -status_poll_s

    def ended() -> bool:
        nonlocal folder_read_at, status_read_at
        now = time.monotonic()
        if now - folder_read_at < folder_poll_s:
            return False
        folder_read_at, end = now, read_status_inputs(folder_of(handle)).end
        if end is not None and end.state in FINAL_STATES:
            return True
        if end is None and not hint() and now - status_read_at < status_poll_s:
            return False
        status_read_at = now
        return status(handle).state.ended

    return ended


def next_start_clause(handle: Handle, *, started: bool) -> str:
    """Say, as the end of a sentence, what happens when the platform restarts the run. Empty before its first start."""
    if not started:
        return ""
    try:
        plan = folder_of(handle).plan()
    except HeadwayError:
        return ""
    if plan.resume == BEGINNING and usd_per_hour(plan) is not None:
        return (
            "; it would start from the beginning, so it is not restarted automatically: headway resume --from-beginning"
        )
    return f"; {describe_next_start(plan.resumes)}"


def release_dead_lease(handle: Handle, is_gone: Callable[[lease.LeaseRecord], bool] | None = None) -> None:
    """Release the lease of a holder that is certainly gone, so that no billed machine waits for it to go stale."""
    try:
        folder = folder_of(handle)
        lease.release_dead_holder(folder.store, is_gone or (lambda record: not record.alive_at(folder.url)))
    except HeadwayError:
        pass  # no folder, or not reachable: the lease goes stale by itself


def ended_or_never_started(handle: Handle) -> bool:
    try:
        inputs = read_status_inputs(folder_of(handle))
    except HeadwayError:  # no folder, or not reachable: assume that it still runs
        return False
    return inputs.end is not None or not inputs.started
