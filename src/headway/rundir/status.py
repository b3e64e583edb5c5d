"""Finding a run, and saying where it stands, from its folder alone. No target is asked and nothing is spent."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headway.core.errors import BadPlan, HeadwayError, Problem, UnknownRun, json_of
from headway.core.paths import home
from headway.core.plan import BEGINNING, again
from headway.core.types import Handle, State, Status
from headway.rundir import lease, submission
from headway.rundir.accounting import rate_usd
from headway.rundir.index import Ledger, Row
from headway.rundir.layout import PLAN, RunFolder, lines, segments
from headway.storage import Store, join, local_path, open_store, require_url, subfolders

if TYPE_CHECKING:
    from headway.spec import Job


LAST = "last"
SHOWN = 10  # candidates in a message


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRef:
    """A run that somebody named. Whether its folder is whole is found out by opening it."""

    name: str
    url: str

    def open(self) -> RunFolder:
        return RunFolder(open_store(self.url))


def find(text: str, *, ledger: Ledger | None = None, outputs: Sequence[str] = ("runs",)) -> RunRef:
    """The run meant by a name, a unique prefix, `last`, a folder or a URL.

    Names are looked up in this machine's index, then as folders below `outputs`.
    """
    require_url(text)
    if "://" in text:
        return _at(text)
    if "/" in text or text.startswith((".", "~")):
        return _folder(Path(text).expanduser())
    ledger = ledger or Ledger()
    if text == LAST:
        return _last(ledger)
    rows = ledger.named(text)
    exact = [row for row in rows if row.name == text]
    known = _present(exact or rows)
    if len(known) == 1:
        return _ref(known[0])
    if known:
        raise _ambiguous(text, known)
    for place in (*(Path(output) / text for output in outputs if "://" not in output), Path(text)):
        if (place / PLAN).is_file():
            return _folder(place)
    if exact:  # never another run whose name merely begins like this one's
        raise UnknownRun(f"the folder of {text} is gone: {exact[0].url}", fix="headway ps")
    raise _unknown(text, ledger)


def _last(ledger: Ledger) -> RunRef:
    rows = _present(ledger.rows(limit=SHOWN))
    if not rows:
        raise UnknownRun("no run has been started from this machine yet", fix="headway run, or name a folder")
    return _ref(rows[0])


def _at(url: str) -> RunRef:
    store = open_store(url)
    return RunRef(name=RunFolder(store).name, url=store.url)


def _folder(path: Path) -> RunRef:
    if not (path / PLAN).is_file():
        what = "is not a run folder: it has no plan.json" if path.is_dir() else "does not exist"
        raise UnknownRun(f"{path} {what}", fix="headway ps")
    return _at(str(path.resolve()))


def _ref(row: Row) -> RunRef:
    return RunRef(name=row.name, url=row.url)


def _present(rows: Iterable[Row]) -> list[Row]:
    """Without runs whose folder was on this machine and has been deleted."""
    return [row for row in rows if (path := local_path(row.url)) is None or (path / PLAN).is_file()]


def _ambiguous(text: str, rows: list[Row]) -> UnknownRun:
    named = [row.name for row in rows]
    shown = named if len(set(named)) == len(named) else [row.url for row in rows]
    more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    return UnknownRun(f"{text!r} could be {', '.join(shown[:SHOWN])}{more}", fix="type more of it, or the folder")


def _unknown(text: str, ledger: Ledger) -> UnknownRun:
    from difflib import get_close_matches

    names = list(dict.fromkeys(row.name for row in ledger.rows(limit=1000)))
    close = get_close_matches(text, names, n=3)
    fix = f"did you mean {' or '.join(close)}? headway ps lists them" if close else "headway ps"
    return UnknownRun(f"no run is called {text!r}", fix=fix)


def rows_below(outputs: str) -> Iterator[Row]:
    """A row of the index for every run in this folder or bucket. What cannot be read is passed over."""
    root = open_store(outputs)
    rows = (row_of(RunFolder(open_store(join(root.url, name)))) for name in subfolders(root))
    yield from (row for row in rows if row is not None)


def row_of(folder: RunFolder) -> Row | None:
    """This run as the index lists it. None for half a folder, or somebody else's: the index is no place to complain."""
    try:
        plan, known, status = folder.plan(), submission.read(folder), folder_status(folder)
    except (HeadwayError, ValueError):
        return None
    return Row(
        name=folder.name,
        url=folder.url,
        target=plan.target,
        job=str(plan.job.get("name", "")),
        created=submission.unix(known.get("created_at")),
        state=status.state.value,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusInputs:
    """What a run's folder says. `end` is how the newest attempt says it ended."""

    end: Status | None
    started: bool  # an attempt has begun since the last submission
    lease: lease.Record | None


def evidence(folder: RunFolder) -> StatusInputs:
    """Read in an order that cannot miss an end: who holds the run first, its last words after."""
    record, _ = lease.read(folder.store)
    after = submission.attempts_before(submission.read(folder))
    newest, event = _last_word(folder.store, record.attempt if record else 0)
    started = newest > after
    return StatusInputs(end=_farewell(event, folder) if event and started else None, started=started, lease=record)


def folder_status(folder: RunFolder) -> Status:
    """Where the run stands, as far as its folder can tell."""
    seen = evidence(folder)
    if seen.end is not None:
        return seen.end
    if not seen.started or seen.lease is None:
        return Status(state=State.PENDING, reason="submitted; no attempt has begun")
    if seen.lease.holder is None:
        return Status(state=State.LOST, reason="gave up the run without saying how it ended")
    alive = seen.lease.seen_at(folder.url)
    # A working copy on a host names the client's folder too, and is run by its own supervisor.
    original = "" if seen.lease.labelled_at(folder.url) else submission.copied_from(folder)
    if original:  # the lease is the original's: nobody has started this one
        return Status(state=State.LOST, reason=f"a copy of {original}, and nothing runs it")
    if alive is False:
        return Status(state=State.LOST, reason=f"killed: process {seen.lease.pid} is gone without a last word")
    where = "" if alive else f"on {seen.lease.host}, which cannot be seen from here"
    return Status(state=State.RUNNING, reason=where)


class StatusPoller:
    """`folder_status` by an observer who stays: it also notices a lease that nobody renews any more."""

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
        if quiet_s < self._stale_s or record is None or record.seen_at(self._folder.url):
            return status
        return Status(state=State.LOST, reason=f"nothing was heard from {record.host} for {quiet_s:.0f} s")


def newest_attempt(folder: RunFolder) -> int:
    record, _ = lease.read(folder.store)
    return _last_word(folder.store, record.attempt if record else 0)[0]


def _last_word(store: Store, held: int) -> tuple[int, dict[str, Any] | None]:
    """The newest attempt, and its `ended` event if it has one. Reads one segment a writer, however long the run."""
    every = segments(store, "events")
    newest = max([held, *(segment.attempt for segment in every)])
    final = {segment.writer: segment for segment in every if segment.attempt == newest}
    for segment in final.values():
        for line in reversed(list(lines(store, segment))):
            event = _event(line, f"{store.url}/{segment.key}")
            if event.get("kind") == "ended":
                return newest, event
    return newest, None


def _event(line: str, where: str) -> dict[str, Any]:
    """Of anything but an object, nothing: it is somebody else's. No JSON at all is damage."""
    try:
        event = json_of(line)
    except ValueError as error:
        raise BadPlan(f"a record is damaged: {error}", where=where, fix="restore the file, or remove it") from None
    return event if isinstance(event, dict) else {}


def _farewell(event: dict[str, Any], folder: RunFolder) -> Status:
    try:
        state = State(event["state"])
    except (KeyError, ValueError):
        raise BadPlan(f"an ending that this Headway does not know: {event}", where=folder.url) from None
    return Status(state=state, reason=str(event.get("reason") or ""), exit_code=event.get("exit_code"))


# What the targets on this very machine share: where a run keeps its files here, what its folder says of its end.


GRACE_S = 30.0  # where the plan cannot be read
FAREWELL_S = 10.0  # beyond the grace period, for a supervisor whose last words meet a slow disk
LEAVING_S = 3.0  # for what is left of a run that has said how it ended


def run_url(outputs: str, run: str) -> str:
    """The one spelling of a run folder's place: it is a label, and labels are compared."""
    folder = local_path(join(outputs, run))
    return join(outputs, run) if folder is None else str(folder)


def folder_of(handle: Handle) -> RunFolder:
    return RunFolder(open_store(handle.url))


def place_of(url: str, kind: str) -> Path:
    """Where a run keeps its files on this machine: in its folder, or in our state folder for one in a bucket."""
    folder = local_path(url)
    if folder is not None:
        return folder / kind
    outputs, _, run = url.rpartition("/")
    return home() / kind / hashlib.sha256(outputs.encode()).hexdigest()[:8] / run


def unwritable(outputs: str) -> list[Problem]:
    folder = local_path(outputs)
    if folder is None:
        return []  # a bucket says no at launch, before anything is started: asking here would need credentials
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return []
    what = f"{there} is not writable" if there.is_dir() else f"{there} is a file"
    return [Problem(what=what, where="outputs", fix="name a folder of yours under `outputs`")]


def has_ended(handle: Handle) -> bool:
    try:
        return evidence(folder_of(handle)).end is not None
    except HeadwayError:  # no folder, or no way to it: what runs here must be stoppable all the same
        return False


def grace_s(handle: Handle) -> float:
    try:
        return folder_of(handle).plan().limits.grace_s
    except HeadwayError:
        return GRACE_S


def about_key_files(job: Job) -> Iterator[str]:
    """A key is valid wherever it is copied to, and for years; what a machine is given by its cloud is not."""
    for name, secret in job.secrets.items():
        if secret.as_ == "file" and "CREDENTIALS" in name:
            yield f"secrets.{name}: a key file works; a machine of that cloud has an identity of its own and needs none"


# What targets share whose runs go on out of sight: when a run that is followed is over, and what its holder left.


FOR_GOOD: Final = (State.FINISHED, State.FAILED, State.BUDGET)  # what is not started again by itself


def over(
    handle: Handle,
    status: Callable[[Handle], Status],
    *,
    look_s: float,
    ask_s: float,
    hint: Callable[[], bool] = lambda: False,
) -> Callable[[], bool]:
    """Whether the run has ended. Its folder is read every `look_s`, `status` asked every `ask_s`: it serves others too.

    `hint` says, cheaply, that asking sooner is worth it.
    """
    looked = asked = -ask_s

    def ended() -> bool:
        nonlocal looked, asked
        now = time.monotonic()
        if now - looked < look_s:
            return False
        looked, end = now, evidence(folder_of(handle)).end
        if end is not None and end.state in FOR_GOOD:
            return True
        if end is None and not hint() and now - asked < ask_s:
            return False
        asked = now
        return status(handle).state.ended

    return ended


def next_start(handle: Handle, *, started: bool) -> str:
    """What becomes of a run that is started again by its place, as the end of a sentence. Empty before its first."""
    if not started:
        return ""
    try:
        plan = folder_of(handle).plan()
    except HeadwayError:
        return ""
    if plan.resume == BEGINNING and rate_usd(plan) is not None:
        return "; it would start from the beginning, so its supervisor ends it: headway resume starts it again"
    return f"; {again(plan.resume)}"


def free_the_lease(handle: Handle, gone: Callable[[lease.Record], bool] | None = None) -> None:
    """Its holder is gone for certain: nobody need wait, on machines that are billed, for the lease to go stale."""
    try:
        folder = folder_of(handle)
        lease.free(folder.store, gone or (lambda record: not record.seen_at(folder.url)))
    except HeadwayError:
        pass  # no folder, or no way to it: it goes stale by itself


def ended_or_never_started(handle: Handle) -> bool:
    try:
        found = evidence(folder_of(handle))
    except HeadwayError:  # no folder, or no way to it: be patient with whatever it is doing
        return False
    return found.end is not None or not found.started
