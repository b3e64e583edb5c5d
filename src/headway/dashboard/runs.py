"""What the dashboard shows: runs of the index and of the places it was given, and everything in a run's folder."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

from headway.core.errors import BadPlan, HeadwayError, UnknownRun
from headway.core.plan import Plan
from headway.core.types import State
from headway.dashboard.views import Metrics, checkpoints, last_lines, verified
from headway.rundir.accounting import spent_s, spent_usd
from headway.rundir.index import Ledger, Row
from headway.rundir.layout import RECEIPT, REPORT, RunFolder
from headway.rundir.status import folder_status, row_of
from headway.storage import Store, join, open_store, subfolders
from headway.storage.base import Entry

# Folders and buckets that the dashboard was given: looked through in the background, again and again.


log = logging.getLogger("headway.ui")

_AGAIN_S: Final = 15.0
_FOLDERS_AT_ONCE: Final = 16  # a look at a run is a handful of round trips where it is in a bucket
_A_BATCH: Final = 100  # runs, after which those found so far are listed


class FolderScanner:
    """Every run below `outputs` comes into the index: those that are there, and those that are started later."""

    def __init__(self, ledger: Ledger, outputs: Sequence[str]) -> None:
        self._ledger = ledger
        self._roots = [open_store(each) for each in outputs]
        self._seen: set[str] = set()
        self.looking = {root.url for root in self._roots}  # those that have not been looked through once
        self._over = threading.Event()

    def start(self) -> None:
        """Raises at once where a place cannot be listed at all."""
        for root in self._roots:
            next(iter(subfolders(root)), None)
        if self._roots:
            threading.Thread(target=self._watch, name="headway-places", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def look(self) -> int:
        """Once through all of them; how many runs were new."""
        return sum(map(self._look, range(len(self._roots))))

    def _look(self, number: int) -> int:
        root = self._roots[number]
        fresh = [url for name in subfolders(root) if (url := join(root.url, name)) not in self._seen]
        found = 0
        with ThreadPoolExecutor(_FOLDERS_AT_ONCE) as pool:
            for start in range(0, len(fresh), _A_BATCH):
                batch = fresh[start : start + _A_BATCH]
                rows = pool.map(lambda url: row_of(RunFolder(open_store(url))), batch)
                known = [row for row in rows if row is not None]
                self._ledger.record(*known)
                self._seen.update(row.url for row in known)  # half a folder is looked at again: it may become whole
                found += len(known)
        self.looking.discard(root.url)
        return found

    def _watch(self) -> None:
        while True:
            try:
                self.look()
            except (HeadwayError, OSError) as error:  # out of reach for a moment: said, and tried again
                log.warning("%s", error)
            if self._over.wait(_AGAIN_S):
                return


# What never changes is read once: the segments of runs that pages ask about every other second.


_MOST_BYTES: Final = 128 << 20
_SEGMENT: Final = re.compile(r"(events|logs)/[^/]+\.(jsonl|log)$")  # those of metrics are kept as curves


class RecordCache:
    """Of all runs together; what was not asked for longest is forgotten first."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most, self._size = most_bytes, 0
        self._known: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._lock = Lock()

    def store(self, url: str) -> Store:
        return CachedStore(open_store(url), self)

    def recall(self, url: str, key: str) -> bytes | None:
        with self._lock:
            found = self._known.get((url, key))
            if found is not None:
                self._known.move_to_end((url, key))
            return found

    def keep(self, url: str, key: str, body: bytes) -> None:
        with self._lock:
            if (url, key) not in self._known:
                self._known[url, key] = body
                self._size += len(body)
            while self._size > self._most and len(self._known) > 1:
                self._size -= len(self._known.popitem(last=False)[1])


class CachedStore:
    """A store whose segments are read once. Everything else is asked for anew."""

    def __init__(self, store: Store, memory: RecordCache) -> None:
        self._store, self._memory = store, memory
        self.url = store.url

    def read(self, key: str, span: tuple[int, int] | None = None) -> bytes:
        if span is not None or not _SEGMENT.fullmatch(key):
            return self._store.read(key, span)
        found = self._memory.recall(self.url, key)
        if found is None:
            found = self._store.read(key)
            self._memory.keep(self.url, key, found)
        return found

    def write(self, key: str, body: bytes | bytearray | memoryview | Path, *, when: str | None = None) -> str:
        return self._store.write(key, body, when=when)

    def stat(self, key: str) -> Entry:
        return self._store.stat(key)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        self._store.delete(key)


_RUNS_AT_ONCE = 8
_FRESH_S = 2.0  # how long a state of a run that goes on is believed


def run_id(url: str) -> str:
    """A short name for an address: what pages and requests call a run. Only runs that are listed have one."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]


@dataclass(slots=True)
class _Known:
    """What was last seen of a run. That of an ended one is not read again."""

    seen: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    ended: bool = False


class RunService:
    """Reads; never changes a run, except by the two verbs that the pages offer."""

    def __init__(self, ledger: Ledger | None = None, places: FolderScanner | None = None) -> None:
        self._ledger = ledger or Ledger()
        self._places = places
        self._memory = RecordCache()
        self._known: dict[str, _Known] = {}
        self._urls: dict[str, str] = {}
        self._metrics: dict[str, Metrics] = {}
        self._lock = Lock()

    def runs(self, *, query: str = "", offset: int = 0, limit: int = 100) -> dict[str, Any]:
        """One page of runs, newest first. Only those of the page are looked at closely, however many there are."""
        total, rows = self._ledger.page(query.split(), offset=offset, limit=limit)
        with self._lock:
            self._urls.update((run_id(row.url), row.url) for row in rows)
        with ThreadPoolExecutor(_RUNS_AT_ONCE) as pool:  # each look is a round trip where the folder is in a bucket
            runs = list(pool.map(self._summary, rows))
        return {"total": total, "runs": runs, "looking": sorted(self._places.looking) if self._places else []}

    def _summary(self, row: Row) -> dict[str, Any]:
        base = {"id": run_id(row.url), "name": row.name, "url": row.url, "target": row.target, "job": row.job,
                "created": row.created, "state": row.state}  # fmt: skip
        known = self._known.setdefault(row.url, _Known())
        resumed = known.ended and row.state != known.facts.get("state")  # as the index has noted since
        if resumed or (not known.ended and time.monotonic() - known.seen > _FRESH_S):
            known.facts = self._looked_at(row)
            known.seen, known.ended = time.monotonic(), known.facts.get("ended", False)
        return {**base, **known.facts}

    def _looked_at(self, row: Row) -> dict[str, Any]:
        try:
            folder = RunFolder(open_store(row.url))
            state = _state(row)
            progress = folder.progress() or {}
            score = best_score(folder)
        except BadPlan as error:
            return {"state": "damaged", "ended": False, "trouble": str(error).splitlines()[0]}
        except (HeadwayError, OSError) as error:
            return {"state": "gone", "ended": False, "trouble": str(error).splitlines()[0]}
        except Exception as error:  # whatever it is, it is this run's alone: the others are listed
            log.exception("%s cannot be shown", row.url)
            return {"state": "damaged", "ended": False, "trouble": f"{type(error).__name__}: {error}"}
        if state != row.state:
            self._ledger.update_state(row.url, state)
        ended = State(state).ended and state != State.LOST.value
        kept = ("step", "steps", "epoch", "epochs", "eta_s", "rate", "spent_s", "loss", "usd", "budget_usd")
        told = {key: progress[key] for key in kept if key in progress}
        return {"state": state, "ended": ended, "progress": told, "best": score}

    def url(self, id_: str) -> str:
        """Of a listed run. UnknownRun for anything else: pages cannot name folders of their own."""
        with self._lock:
            found = self._urls.get(id_)
        if found is None:  # of a page that nobody has turned to since we began
            with self._lock:
                self._urls.update((run_id(row.url), row.url) for row in self._ledger.rows())
                found = self._urls.get(id_)
        if found is None:
            raise UnknownRun("no such run is listed here")
        return found

    def folder(self, id_: str) -> RunFolder:
        return RunFolder(self._memory.store(self.url(id_)))

    def details(self, id_: str) -> dict[str, Any]:
        folder = self.folder(id_)
        plan = folder.plan()
        events = folder.events()
        return {
            "id": id_,
            "name": folder.name,
            "url": folder.url,
            "target": plan.target,
            "state": _state_of(folder),
            "job": plan.job,
            "plan": {
                "hash": plan.hash,
                "nodes": plan.nodes,
                "processes": plan.processes,
                "limits": asdict(plan.limits),
                "price": dict(plan.price),
                "code": plan.code.sha256,
                "data": dict(plan.data),
                "environment": dict(plan.environment),
                "notes": list(plan.notes),
            },
            "progress": folder.progress() or {},
            "spent": _spent(folder, plan),
            "ranks": plan.nodes * plan.processes,
            "best": best_score(folder),
            "checkpoints": checkpoints(folder, events),
            "events": [event for event in events if event["kind"] not in ("checkpoint", "score")][-200:],
            "receipt": folder.read_json(RECEIPT),
            "report": folder.read_json(REPORT),
            "metrics": self.metrics(id_).names,
        }

    def metrics(self, id_: str) -> Metrics:
        url = self.url(id_)
        with self._lock:
            found = self._metrics.setdefault(url, Metrics(RunFolder(open_store(url))))
        found.refresh()
        return found

    def logs(self, id_: str, *, rank: int | None, query: str, last: int) -> dict[str, Any]:
        """The newest lines that contain `query`, oldest first."""
        return {"lines": last_lines(self.folder(id_), rank=rank, query=query, last=last)}

    def verified(self, id_: str, step: int) -> dict[str, Any]:
        """Whether this checkpoint is what was written: all of it is read."""
        return verified(self.folder(id_), step)

    def configs(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """Where the job files of these runs differ: one row a setting, one value a run."""
        flat = [_flat(self.folder(id_).plan().job) for id_ in ids]
        keys = sorted(set().union(*flat)) if flat else []
        return [
            {"key": key, "values": [each.get(key) for each in flat]}
            for key in keys
            if len({repr(each.get(key)) for each in flat}) > 1
        ]


def best_score(folder: RunFolder) -> float | None:
    """Of the checkpoint that was last named the best: of the last phase, where there are several."""
    kept = folder.kept_checkpoints()
    scores = [each.get("score") for each in kept if any(name.endswith("best") for name in each.get("names", ()))]
    return scores[-1] if scores else None


def _state(row: Row) -> str:
    if State(row.state).ended and row.state != State.LOST.value:
        return row.state
    return _state_of(RunFolder(open_store(row.url)))


def _state_of(folder: RunFolder) -> str:
    return folder_status(folder).state.value


def _spent(folder: RunFolder, plan: Plan) -> dict[str, Any]:
    """Time and money over all attempts, against the budget where there is one."""
    seconds = spent_s(folder)
    return {"seconds": round(seconds, 1), "budget_s": plan.limits.budget_s, "usd": spent_usd(plan, seconds),
            "budget_usd": plan.price.get("ceiling_usd")}  # fmt: skip


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found.update(_flat(inner, f"{prefix}.{key}" if prefix else str(key)))
    return found
