"""The dashboard's data: discover runs, cache their records, and read everything that the pages show of a run."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

from headway.core.errors import BadPlan, HeadwayError, UnknownRun
from headway.core.types import State
from headway.dashboard.views import Metrics, checkpoints, last_lines, verified
from headway.rundir.index import RunIndex, RunRow
from headway.rundir.layout import RECEIPT, REPORT, RunFolder
from headway.rundir.overview import RunOverview
from headway.rundir.status import folder_status, row_of
from headway.storage import Store, join, open_store, subfolders
from headway.storage.base import ObjectInfo

# Scanning folders and buckets in the background


log = logging.getLogger("headway.ui")

_RESCAN_S: Final = 15.0
_PARALLEL_FOLDERS: Final = 16  # a run in a bucket takes several round trips
_BATCH_SIZE: Final = 100  # record found runs in the index in batches of this size


class FolderScanner:
    """Adds every run below `outputs` to the index: existing runs, and those started later."""

    def __init__(self, run_index: RunIndex, outputs: Sequence[str]) -> None:
        self._run_index = run_index
        self._roots = [open_store(each) for each in outputs]
        self._seen: set[str] = set()
        self.scanning = {root.url for root in self._roots}  # not scanned completely yet
        self._closed = threading.Event()

    def start(self) -> None:
        """Start the background scan. Raises at once if an output folder cannot be listed."""
        for root in self._roots:
            next(iter(subfolders(root)), None)
        if self._roots:
            threading.Thread(target=self._scan_loop, name="headway-places", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def scan_now(self) -> int:
        """Scan all folders once; return the number of new runs."""
        return sum(map(self._scan_root, range(len(self._roots))))

    def _scan_root(self, number: int) -> int:
        root = self._roots[number]
        fresh = [url for name in subfolders(root) if (url := join(root.url, name)) not in self._seen]
        found = 0
        with ThreadPoolExecutor(_PARALLEL_FOLDERS) as pool:
            for start in range(0, len(fresh), _BATCH_SIZE):
                batch = fresh[start : start + _BATCH_SIZE]
                rows = pool.map(lambda url: row_of(RunFolder(open_store(url))), batch)
                known = [row for row in rows if row is not None]
                self._run_index.record(*known)
                self._seen.update(row.url for row in known)  # an incomplete folder is scanned again
                found += len(known)
        self.scanning.discard(root.url)
        return found

    def _scan_loop(self) -> None:
        while True:
            try:
                self.scan_now()
            except (HeadwayError, OSError) as error:  # briefly unreachable: log it, and retry
                log.warning("%s", error)
            if self._closed.wait(_RESCAN_S):
                return


# Caching immutable segments, since pages poll every other second


_MOST_BYTES: Final = 128 << 20
_SEGMENT: Final = re.compile(r"(events|logs)/[^/]+\.(jsonl|log)$")  # metrics are kept as curves instead


class RecordCache:
    """An LRU cache of segments, shared by all runs."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most, self._size = most_bytes, 0
        self._known: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._lock = Lock()

    def store(self, url: str) -> Store:
        return CachedStore(open_store(url), self)

    def get(self, url: str, key: str) -> bytes | None:
        with self._lock:
            found = self._known.get((url, key))
            if found is not None:
                self._known.move_to_end((url, key))
            return found

    def put(self, url: str, key: str, body: bytes) -> None:
        with self._lock:
            if (url, key) not in self._known:
                self._known[url, key] = body
                self._size += len(body)
            while self._size > self._most and len(self._known) > 1:
                self._size -= len(self._known.popitem(last=False)[1])


class CachedStore:
    """A store that reads each segment once. Everything else is read anew."""

    def __init__(self, store: Store, cache: RecordCache) -> None:
        self._store, self._cache = store, cache
        self.url = store.url

    def read(self, key: str, span: tuple[int, int] | None = None) -> bytes:
        if span is not None or not _SEGMENT.fullmatch(key):
            return self._store.read(key, span)
        found = self._cache.get(self.url, key)
        if found is None:
            found = self._store.read(key)
            self._cache.put(self.url, key, found)
        return found

    def write(self, key: str, body: bytes | bytearray | memoryview | Path, *, when: str | None = None) -> str:
        return self._store.write(key, body, when=when)

    def stat(self, key: str) -> ObjectInfo:
        return self._store.stat(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        self._store.delete(key)


_PARALLEL_RUNS = 8
_CACHE_S = 2.0  # how long the state of a live run is cached


def run_id(url: str) -> str:
    """Return the short id that pages and requests use for a run's URL. Only listed runs are found by it."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]


@dataclass(slots=True)
class _CachedSummary:
    """Cached summary of a run. That of an ended run is not read again."""

    seen: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    ended: bool = False


class RunService:
    """Reads runs for the pages. Never changes a run."""

    def __init__(self, run_index: RunIndex | None = None, scanner: FolderScanner | None = None) -> None:
        self._run_index = run_index or RunIndex()
        self._scanner = scanner
        self._cache = RecordCache()
        self._summaries: dict[str, _CachedSummary] = {}
        self._urls: dict[str, str] = {}
        self._metrics: dict[str, Metrics] = {}
        self._lock = Lock()

    def runs(self, *, query: str = "", offset: int = 0, limit: int = 100) -> dict[str, Any]:
        """Return one page of runs, newest first. Only the runs on the page are read, however many there are."""
        total, rows = self._run_index.page(query.split(), offset=offset, limit=limit)
        with self._lock:
            self._urls.update((run_id(row.url), row.url) for row in rows)
        with ThreadPoolExecutor(_PARALLEL_RUNS) as pool:  # a round trip each if the folder is in a bucket
            runs = list(pool.map(self._summary, rows))
        return {"total": total, "runs": runs, "looking": sorted(self._scanner.scanning) if self._scanner else []}

    def _summary(self, row: RunRow) -> dict[str, Any]:
        base = {"id": run_id(row.url), "name": row.name, "url": row.url, "target": row.target, "job": row.job,
                "created": row.created, "state": row.state}  # fmt: skip
        known = self._summaries.setdefault(row.url, _CachedSummary())
        resumed = known.ended and row.state != known.facts.get("state")  # according to the index
        if resumed or (not known.ended and time.monotonic() - known.seen > _CACHE_S):
            known.facts = self._read_summary(row)
            known.seen, known.ended = time.monotonic(), known.facts.get("ended", False)
        return {**base, **known.facts}

    def _read_summary(self, row: RunRow) -> dict[str, Any]:
        try:
            folder = RunFolder(open_store(row.url))
            state = _state(row)
            progress = folder.progress() or {}
            score = best_score(folder)
        except BadPlan as error:
            return {"state": "damaged", "ended": False, "trouble": str(error).splitlines()[0]}
        except (HeadwayError, OSError) as error:
            return {"state": "gone", "ended": False, "trouble": str(error).splitlines()[0]}
        except Exception as error:  # any bug with one run must not hide the others
            log.exception("%s could not be read", row.url)
            return {"state": "damaged", "ended": False, "trouble": f"{type(error).__name__}: {error}"}
        if state != row.state:
            self._run_index.update_state(row.url, state)
        ended = State(state).ended and state != State.LOST.value
        kept = ("step", "steps", "epoch", "epochs", "eta_s", "rate", "spent_s", "loss", "usd", "budget_usd")
        shown_progress = {key: progress[key] for key in kept if key in progress}
        return {"state": state, "ended": ended, "progress": shown_progress, "best": score}

    def url(self, id_: str) -> str:
        """Return the URL of a listed run.

        Raises UnknownRun for anything else, so that pages cannot name arbitrary folders.
        """
        with self._lock:
            found = self._urls.get(id_)
        if found is None:  # on a page not requested since the server started
            with self._lock:
                self._urls.update((run_id(row.url), row.url) for row in self._run_index.rows())
                found = self._urls.get(id_)
        if found is None:
            raise UnknownRun("no such run")
        return found

    def folder(self, id_: str) -> RunFolder:
        return RunFolder(self._cache.store(self.url(id_)))

    def details(self, id_: str) -> dict[str, Any]:
        folder = self.folder(id_)
        plan = folder.plan()
        events, overview = folder.events(), RunOverview.of(folder, plan=plan)
        return {
            "id": id_,
            "name": folder.name,
            "url": folder.url,
            "target": plan.target,
            "state": overview.status.state.value,
            "job": _without_values(plan.job),
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
            "progress": overview.progress,
            "spent": overview.spent.as_json(),
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
        """Return the newest lines that contain `query`, oldest first."""
        return {"lines": last_lines(self.folder(id_), rank=rank, query=query, last=last)}

    def verified(self, id_: str, step: int) -> dict[str, Any]:
        """Read a whole checkpoint and compare it with its manifest."""
        return verified(self.folder(id_), step)

    def configs(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """Return the settings in which the runs' job files differ: one row per setting, one value per run."""
        flat = [_flat(self.folder(id_).plan().job) for id_ in ids]
        keys = sorted(set().union(*flat)) if flat else []
        return [
            {"key": key, "values": [_shown(key, each.get(key)) for each in flat]}
            for key in keys
            if len({repr(each.get(key)) for each in flat}) > 1
        ]


def best_score(folder: RunFolder) -> float | None:
    """Return the score of the checkpoint last named the best; with several phases, that of the last phase."""
    kept = folder.kept_checkpoints()
    scores = [each.get("score") for each in kept if any(name.endswith("best") for name in each.get("names", ()))]
    return scores[-1] if scores else None


def _state(row: RunRow) -> str:
    if State(row.state).ended and row.state != State.LOST.value:
        return row.state
    return _state_of(RunFolder(open_store(row.url)))


def _state_of(folder: RunFolder) -> str:
    return folder_status(folder).state.value


def _without_values(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job without the values of its variables, which may be passwords that somebody typed there."""
    return {**job, "env": dict.fromkeys(job.get("env") or {}, "***")}


def _shown(key: str, value: Any) -> Any:
    return "***" if key.startswith("env.") and value is not None else value


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found.update(_flat(inner, f"{prefix}.{key}" if prefix else str(key)))
    return found
