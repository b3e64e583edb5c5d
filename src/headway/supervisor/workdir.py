"""Sync the files a script writes below its working folder to the run folder's `files/workdir/`, and restore them.

Only files that the script has created or changed are saved. Files from the code archive and files that `setup` made
before the ranks started are there again at every start, so they are not saved; nor are caches, version control and
virtual environments.

A script that starts from the beginning must not destroy the files of an earlier attempt: before it starts, they are
moved to `files/earlier/aNNNN/`, and the working folder is reset to its state at the first start.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.errors import BadPlan, json_of
from headway.core.plan import Plan
from headway.rundir.layout import CODE_LISTING, RunFolder
from headway.storage import Store, local_path
from headway.storage.base import Entry
from headway.supervisor.file_sync import EARLIER, WORKDIR, FileStat, Mirror, download, file_stat
from headway.supervisor.rank_env import Workdirs

EXCLUDED_PATTERNS = (
    ".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache",
    ".ruff_cache", ".ipynb_checkpoints", ".tox", "*.egg-info", "*.pyc", ".DS_Store", ".headway-*", ".nfs*",
)  # fmt: skip
ENVIRONMENT_MARKERS = ("pyvenv.cfg", "conda-meta")  # a folder that contains one of these is a virtual environment
WARN_BYTES, WARN_FILES = 20_000_000_000, 20_000  # beyond either, log once that all files are uploaded
_CHUNK = 8 << 20

Code = Mapping[str, tuple[int, str]]  # size and SHA-256 of every file in the code archive


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareResult:
    """Result of preparing the working folder before the ranks start."""

    restored: int = 0
    moved: int = 0  # files of an earlier attempt that were moved
    moved_to: str = ""  # where they were moved to


class Workdir(Mirror):
    """Uploader of a script's files. `sync` does nothing before `prepare` or `register_existing`."""

    def __init__(
        self,
        root: Path,
        store: Store,
        *,
        node: int = 0,
        code: Callable[[], Code | None] = lambda: None,
        state_dir: Path,
        excluded: Sequence[Path] = (),
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`state_dir` is a folder that lasts as long as `root`; `excluded` are subfolders of `root` to leave out."""
        super().__init__(root, store, node=node, log=log)
        self._base, self._prefix = self._prefix, self._prefix + WORKDIR
        self._read_code = code
        self._code: Code | None = None
        self._index, self._unsaved = state_dir / INDEX_FILE, state_dir / UNSAVED_FOLDER
        self._record_key = f"workdir/node-{node}.json"
        self._excluded = {str(path) for path in excluded}
        self._initial_files: set[str] = set()  # files other than the code that were there before any rank ran
        self._unchanged: dict[str, FileStat] = {}  # state of files before the script changed them
        self._changed: dict[str, FileStat] = {}  # files of the code archive that were changed
        self._recorded: dict[str, FileStat] = {}
        self._known: dict[str, dict[str, Any]] = {}  # files that an earlier supervisor uploaded from this same folder
        self._used_before = False  # whether an earlier supervisor used this same folder
        self._scanned = self._prepared = self._warned_size = False

    def prepare(self, *, fresh: bool, former: int) -> PrepareResult:
        """Restore the files of earlier attempts before the ranks start or, with `fresh`, move them aside.

        `former` is the newest attempt that has run. May be called again after an error.
        """
        with self._lock:
            if not self._scanned:
                self._scan_initial()
            if fresh:
                done = self._move_aside(former)
            else:
                done = PrepareResult(restored=0 if self._prepared else self._restore_files())
            self._prepared = True
            self._record()
            return done

    def register_existing(self) -> None:
        """Register files that an earlier attempt left in this same folder, without restoring any: no rank will run."""
        with self._lock:
            self._scan_initial()
            if self._used_before:
                for name, entry in self._entries().items():
                    self._register_if_current(name, entry)
                self._prepared = True

    def sync(self, *, final: bool = False) -> int:
        with self._lock:
            if not self._prepared:
                return 0
            sent = self._sync(final)
            self._record()
            return sent

    @property
    def saved(self) -> tuple[int, int]:
        """Number and total bytes of the files saved in the run folder."""
        return len(self._sent), sum(each.size for each in self._sent.values())

    def clear(self) -> None:
        """Remove the script's files once all are saved, so that the next start finds the folder in its first state."""
        with self._lock:
            if self._prepared:
                self._remove_written()
                self._index.unlink(missing_ok=True)

    def rescue(self) -> None:
        """Copy files that the store did not accept to `workdir-unsaved`, if the working folder itself is temporary."""
        with self._lock:
            if not self._prepared or self._root.parent == self._index.parent:
                return
            for name, now in self._scan():
                if self._sent.get(name) != now:
                    to = self._unsaved / name
                    to.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(self._root / name, to)

    # Before the ranks start

    def _scan_initial(self) -> None:
        """Find the files that were there before the script ran, and put back files saved by `rescue`."""
        self._code = self._read_code()
        index = _json(self._index)
        self._known = index.get("files", {})
        found = dict(super()._scan())
        self._used_before = bool(index)
        self._initial_files = set(index.get("before", ())) if index else set(found) - set(self._code or ())
        for name, now in found.items():
            if name in self._initial_files:
                self._unchanged[name] = now
        if self._unsaved.is_dir():
            shutil.copytree(self._unsaved, self._root, dirs_exist_ok=True)
            shutil.rmtree(self._unsaved)
        self._scanned = True

    def _restore_files(self) -> int:
        """Download the saved files, except where the local copy is the same or has been changed since its upload."""
        times = self._times()
        entries = self._entries()
        count = 0
        # Oldest first, with their modification times: scripts look for the newest file.
        for name, entry in sorted(entries.items(), key=lambda item: (times.get(item[0], 0), item[0])):
            if self._register_if_current(name, entry):
                continue
            path = self._root / name
            if self._download(entry, path):
                if name in times:
                    os.utime(path, ns=(times[name], times[name]))
                self._register(name, entry.version)
                count += 1
        for name in self._known.keys() - entries.keys():
            if file_stat(self._root / name) == _recorded_stat(self._known[name]):
                (self._root / name).unlink(missing_ok=True)  # a later attempt on another machine has removed it
        return count

    def _register_if_current(self, name: str, entry: Entry) -> bool:
        """Return whether the local copy is the one in the store or a newer one; register it if it is the same."""
        known, now = self._known.get(name), file_stat(self._root / name)
        if now is None or known is None or known.get("version") != entry.version:
            return False
        if now == _recorded_stat(known):
            self._register(name, entry.version)
        return True

    def _register(self, name: str, version: str) -> None:
        found = file_stat(self._root / name)
        if found is not None:
            self._sent[name] = self._last_scan[name] = found
            self._versions[name] = version

    def _move_aside(self, former: int) -> PrepareResult:
        if not former:
            return PrepareResult()
        entries = self._entries()
        if not self._prepared:
            for name, entry in entries.items():
                self._register_if_current(name, entry)
        if self._used_before or self._prepared:
            self._sync(final=True)  # the last files of a killed attempt are not in the store yet
        to = f"{self._base}{EARLIER}a{former:04d}/"
        moved = [move(self._store, entry.key, to + name) for name, entry in self._entries().items()]
        self._remove_written()
        for name, _ in self._scan():
            self._log(f"{name} is as the earlier attempt left it: only a new run uploads it again")
        self._sent, self._last_scan, self._versions = {}, {}, {}
        return PrepareResult(moved=len(moved), moved_to=to)

    def _remove_written(self) -> None:
        """Remove the script's files. Without a listing of the code archive they are not known, so remove nothing."""
        if self._code is None:
            return
        for name in [name for name, _ in self._scan()]:
            if name not in self._code and name not in self._initial_files:
                path = self._root / name
                path.unlink(missing_ok=True)
                _remove_empty(path.parent, self._root)

    # Choosing files

    def _scan(self) -> Iterator[tuple[str, FileStat]]:
        for name, now in super()._scan():
            if self._unchanged.get(name) != now and not self._is_unchanged_code(name, now):
                yield name, now

    def _is_unchanged_code(self, name: str, now: FileStat) -> bool:
        archived = (self._code or {}).get(name)
        if archived is None or self._changed.get(name) == now:
            return False
        if archived == (now.size, _sha256(self._root / name) if now.size == archived[0] else ""):
            self._unchanged[name] = now
            return True
        self._changed[name] = now
        return False

    def _subfolders_to_scan(self, folder: str, names: list[str]) -> list[str]:
        chosen = []
        for name in names:
            path = os.path.join(folder, name)
            if _is_excluded(name) or path in self._excluded:
                continue
            if any(os.path.exists(os.path.join(path, mark)) for mark in ENVIRONMENT_MARKERS):
                self._skip(path, "is a virtual environment")
                continue
            if os.path.islink(path) and not Path(path).resolve().is_relative_to(self._root.resolve()):
                self._skip(path, "is a link that points outside the folder")
                continue
            chosen.append(name)
        return chosen

    def _stat_file(self, path: Path) -> FileStat | None:
        return None if _is_excluded(path.name) else super()._stat_file(path)

    def _reserved(self, prefix: str, name: str) -> bool:
        return False

    # Records

    def _entries(self) -> dict[str, Entry]:
        return {entry.key[len(self._prefix) :]: entry for entry in self._store.list(self._prefix)}

    def _times(self) -> dict[str, int]:
        try:
            record = RunFolder(self._store).read_json(self._record_key) or {}
            return {name: int(each["modified_ns"]) for name, each in record.get("files", {}).items()}
        except (BadPlan, KeyError, TypeError, ValueError):
            self._log(f"{self._record_key} is damaged: restored files have no modification times")
            return {}

    def _record(self) -> None:
        """Write the index of saved files to disk and to the store.

        The next start in this folder reads the local one to tell which copy of a file is newer; a start elsewhere reads
        the modification times from the store.
        """
        if self._sent == self._recorded and self._index.exists():
            return
        files = {
            name: {"size": p.size, "modified_ns": p.modified_ns, "inode": p.inode, "version": self._versions.get(name)}
            for name, p in self._sent.items()
        }
        record = {"before": sorted(self._initial_files), "files": files}
        self._index.parent.mkdir(parents=True, exist_ok=True)
        partial = self._index.with_suffix(".part")
        partial.write_text(json.dumps(record))
        partial.replace(self._index)
        if self._sent != self._recorded:
            RunFolder(self._store).write_json(self._record_key, {"files": files})
        self._recorded = dict(self._sent)
        self._warn_if_large()

    def _warn_if_large(self) -> None:
        count, size = self.saved
        if not self._warned_size and (count > WARN_FILES or size > WARN_BYTES):
            self._warned_size = True
            where = "write files that need not be kept to another folder, such as /tmp"
            self._log(
                f"the script has written {count} files ({format_size(size)}) to its folder, and all are kept: {where}"
            )


INDEX_FILE, UNSAVED_FOLDER = "workdir.json", "workdir-unsaved"


def make_workdir(
    plan: Plan, folder: RunFolder, workdirs: Workdirs, *, node: int, env: Mapping[str, str], log: Callable[[str], None]
) -> Workdir | None:
    """Return the working folder's sync, or None if there is nothing to save.

    None for a recipe, for a folder that was not chosen for this run, and for a folder that another node syncs.
    """
    if not plan.job.get("script") or not env.get("HEADWAY_CODE_DIR") or (node and is_shared(plan)):
        return None
    excluded = [workdirs.work, workdirs.spool, workdirs.files, workdirs.resume, *filter(None, [local_path(folder.url)])]
    return Workdir(
        workdirs.code,
        folder.store,
        node=node,
        code=lambda: code_listing(folder, plan.code.sha256),
        state_dir=workdirs.spool.parent,
        excluded=excluded,
        log=log,
    )


def is_shared(plan: Plan) -> bool:
    """Return whether all nodes share one working folder.

    Slurm's is in the outputs; Docker's is mounted where the job names a ready-made image.
    """
    ready = bool((plan.job.get("image") or {}).get("uri"))
    return plan.kind == "slurm" or (plan.kind == "docker" and ready)


def code_listing(folder: RunFolder, sha256: str) -> Code | None:
    """Read the launcher's listing of the code archive; None if there is none or it describes another archive."""
    record = folder.read_json(CODE_LISTING)
    if record is None or record.get("sha256") != sha256:
        return None
    return {str(name): (int(size), str(digest)) for name, (size, digest) in record["files"].items()}


def move(store: Store, source: str, to: str) -> str:
    """Move an object to another key; return that key. Stores have no rename: copy completely, then delete."""
    folder = local_path(store.url)
    if folder is not None:
        (folder / to).parent.mkdir(parents=True, exist_ok=True)
        (folder / source).replace(folder / to)
        _remove_empty((folder / source).parent, folder)
        return to
    import tempfile

    with tempfile.TemporaryDirectory(prefix="headway-move-") as scratch:
        path = Path(scratch, "object")
        download(store, store.stat(source), path)
        store.write(to, path)
    store.delete(source)
    return to


def format_size(count: int) -> str:
    """Format a number of bytes, as in 12.4 MB."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _is_excluded(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in EXCLUDED_PATTERNS)


def _recorded_stat(known: Mapping[str, Any]) -> FileStat | None:
    try:
        return FileStat(int(known["size"]), int(known["modified_ns"]), int(known["inode"]))
    except (KeyError, TypeError, ValueError):
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json_of(path.read_bytes())
    except (OSError, ValueError):  # never written, or damaged: rely on the store
        return {}
    return value if isinstance(value, dict) else {}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while part := file.read(_CHUNK):
                digest.update(part)
    except OSError:
        return ""
    return digest.hexdigest()


def _remove_empty(folder: Path, root: Path) -> None:
    """Remove a folder and its parents, up to but not including the root, as long as they are empty."""
    while folder != root and folder.is_relative_to(root):
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
