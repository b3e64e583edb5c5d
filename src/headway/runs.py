"""Finding a run, and saying where it stands, from its folder alone. No target is asked and nothing is spent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway import intent, lease
from headway.errors import BadPlan, HeadwayError, UnknownRun
from headway.foreign import json_of
from headway.ledger import Ledger, Row
from headway.runfolder import PLAN, RunFolder
from headway.segments import lines, segments
from headway.storage import Store, join, local_path, open_store, require_url, subfolders
from headway.targets.base import State, Status

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
        plan, known, status = folder.plan(), intent.read(folder), folder_status(folder)
    except (HeadwayError, ValueError):
        return None
    return Row(
        name=folder.name,
        url=folder.url,
        target=plan.target,
        job=str(plan.job.get("name", "")),
        created=intent.unix(known.get("created_at")),
        state=status.state.value,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What a run's folder says. `farewell` is the newest attempt's own word on how it ended."""

    farewell: Status | None
    started: bool  # an attempt has begun since the last submission
    lease: lease.Record | None


def evidence(folder: RunFolder) -> Evidence:
    """Read in an order that cannot miss an end: who holds the run first, its last words after."""
    record, _ = lease.read(folder.store)
    after = intent.awaited_after(intent.read(folder))
    newest, event = _last_word(folder.store, record.attempt if record else 0)
    started = newest > after
    return Evidence(farewell=_farewell(event, folder) if event and started else None, started=started, lease=record)


def folder_status(folder: RunFolder) -> Status:
    """Where the run stands, as far as its folder can tell."""
    seen = evidence(folder)
    if seen.farewell is not None:
        return seen.farewell
    if not seen.started or seen.lease is None:
        return Status(state=State.PENDING, reason="submitted; no attempt has begun")
    if seen.lease.holder is None:
        return Status(state=State.LOST, reason="gave up the run without saying how it ended")
    original, alive = intent.copied_from(folder), seen.lease.seen_at(folder.url)
    if original:  # the lease is the original's: nobody has started this one
        return Status(state=State.LOST, reason=f"a copy of {original}, and nothing runs it")
    if alive is False:
        return Status(state=State.LOST, reason=f"killed: process {seen.lease.pid} is gone without a last word")
    where = "" if alive else f"on {seen.lease.host}, which cannot be seen from here"
    return Status(state=State.RUNNING, reason=where)


class Watch:
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
