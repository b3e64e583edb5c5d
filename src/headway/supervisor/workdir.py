"""Sync the files a script writes below its working folder to the run folder's `files/workdir/`, and restore them.

Only files that the script has created or changed are saved. Files from the code archive and files that `setup` made
before the ranks started are there again at every start, so they are not saved; nor are caches, version control and
virtual environments.

Input data that the script downloads beside its code is not saved (`input_data.py`), nor what exceeds the limit.

A checkpoint of an earlier attempt is not deleted before the new attempt is past it. If the new attempt overwrites it,
the earlier one stays in `files/earlier/aNNNN/` until the run has finished.

A script that starts from the beginning must not destroy the files of an earlier attempt: before it starts, they are
moved to `files/earlier/aNNNN/`, and the working folder is reset to its state at the first start.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headway.core.errors import BadPlan, NotThere, json_of
from headway.core.globs import matches_any
from headway.core.plan import Plan
from headway.core.program import KEEP_LIMIT, is_foreign_image, is_project
from headway.plugins import plugin_of
from headway.rundir.layout import CODE_LISTING, PLAN, SUBMISSION, RunFolder
from headway.storage import Store, local_path
from headway.storage.base import ObjectInfo
from headway.supervisor.file_sync import EARLIER, WORKDIR, Mirror, download, file_sha256, file_stat
from headway.supervisor.input_data import KEEP_HINT, InputData
from headway.supervisor.keep_rules import (
    FileStat,
    LeftOut,
    format_size,
    has_later,
    is_checkpoint,
    over_limit,
    summarize,
)
from headway.supervisor.rank_env import NodeFolders

EXCLUDED_PATTERNS = (
    ".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache",
    ".ruff_cache", ".ipynb_checkpoints", ".tox", "*.egg-info", "*.pyc", ".DS_Store", ".headway-*", ".nfs*",
)  # fmt: skip
ENVIRONMENT_MARKERS = ("pyvenv.cfg", "conda-meta")  # a folder that contains one of these is a virtual environment
WARN_BYTES, WARN_FILES = 20_000_000_000, 20_000  # beyond either, log once that all files are uploaded
MAX_SUPERSEDED = 3  # overwritten checkpoints of how many earlier attempts are held until the run has finished
_SOURCES = (".py", ".ipynb", ".sh")

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
        keep: Sequence[str] = (),
        limit: int = KEEP_LIMIT,
        in_place: bool = False,
        linked: str = "",
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Create the uploader.

        `state_dir` is a folder that lasts as long as `root`; `excluded` are paths in `root` to leave out; `keep` are
        patterns of the files to save, all by default; `limit` is the most bytes to save. With `in_place`, `root` is
        the user's own folder: nothing in it is removed or overwritten. `linked` is a folder whose files a copy links
        to: they are nobody's output.
        """
        super().__init__(root, store, node=node, log=log)
        self._base, self._prefix = self._prefix, self._prefix + WORKDIR
        self._read_code = code
        self._code: Code | None = None
        self._index, self._unsaved = state_dir / INDEX_FILE, state_dir / UNSAVED_FOLDER
        self._record_key = f"workdir/node-{node}.json"
        self._excluded = {str(path) for path in excluded}
        self._keep, self._in_place, self._linked = tuple(keep), in_place, linked
        self._limit = limit
        self._uncovered: dict[str, int] = {}  # size of the files that no pattern of `keep` covers
        self._over_limit: dict[str, int] = {}  # size of the files beyond the limit
        self._input = InputData(log)
        self._held: set[str] = set()  # files that look like input data
        self.has_other_checkpoint: Callable[[], bool] = lambda: False  # whether the program saves elsewhere too
        self.finished = False  # the program has finished: nothing of an earlier attempt is needed any more
        self._attempt = 0  # the attempt that runs now
        self._attempts: dict[str, int] = {}  # which attempt wrote each saved file
        self._superseded: list[str] = []  # keys of overwritten checkpoints of earlier attempts
        self._recorded_left_out: list[LeftOut] = []
        self._initial_files: set[str] = set()  # files other than the code that were there before any rank ran
        self._unchanged: dict[str, FileStat] = {}  # state of files before the script changed them
        self._code_at_start: dict[str, FileStat] = {}  # state of the code's files before this attempt
        self._changed: dict[str, FileStat] = {}  # files of the code archive that were changed
        self._recorded: dict[str, FileStat] = {}
        self._known: dict[str, dict[str, Any]] = {}  # files that an earlier supervisor uploaded from this same folder
        self._used_before = False  # whether an earlier supervisor used this same folder
        self._scanned = self._prepared = self._warned_size = False

    def prepare(self, *, fresh: bool, last_attempt: int, attempt: int | None = None) -> PrepareResult:
        """Restore the files of earlier attempts before the ranks start or, with `fresh`, move them aside.

        `last_attempt` is the newest attempt that has run, `attempt` the next one. May be called again after an error.
        """
        with self._lock:
            if not self._scanned:
                self._scan_initial()
            if fresh:
                done = self._move_aside(last_attempt)
            else:
                done = PrepareResult(restored=0 if self._prepared else self._restore_files())
            self._prepared = True
            self._attempt = last_attempt + 1 if attempt is None else attempt
            self._input.start()
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
            if final and self.finished:
                self._delete_superseded()
            self._record()
            return sent

    @property
    def left_out(self) -> list[LeftOut]:
        """The files that are not saved, with their sizes and the reason."""
        limit = f"is beyond the limit of {format_size(self._limit)} (keep_limit)"
        problems = {name: stat.size for name in self._skipped if (stat := file_stat(self._root / name)) is not None}
        return [
            *(
                LeftOut(each.path, each.files, each.bytes, f"{each.why}; {KEEP_HINT}")
                for each in self._input.left_out()
            ),
            *summarize(self._over_limit, limit),
            *summarize(self._uncovered, "is not covered by `keep` in the job file"),
            *(LeftOut(name, 1, size, self._skipped[name]) for name, size in problems.items()),
        ]

    @property
    def saved(self) -> tuple[int, int]:
        """Number and total bytes of the files saved in the run folder."""
        return len(self._sent), sum(each.size for each in self._sent.values())

    def clear(self) -> None:
        """Remove the script's files once all are saved, so that the next start finds the folder in its first state."""
        with self._lock:
            if self._prepared:
                if not self._in_place:  # there they are the user's
                    self._remove_written()
                self._index.unlink(missing_ok=True)

    def rescue(self) -> None:
        """Copy files that the store did not accept to `workdir-unsaved`, if the working folder itself is temporary."""
        with self._lock:
            if not self._prepared or self._in_place or self._root.parent == self._index.parent:
                return
            for name, now in self._choose(dict(self._scan()), final=True).items():
                if self._sent.get(name) != now:
                    to = self._unsaved / name
                    to.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(self._root / name, to)

    def is_from_before(self, path: Path) -> bool:
        """Return whether nothing at a path in the working folder is this run's: it is as it was before the first start.

        Checkpoints of another run may lie in a folder in which a project runs in place.
        """
        with self._lock:
            if not path.is_relative_to(self._root):
                return False
            files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
            return all(self._is_initial(each) for each in files)

    def _is_initial(self, path: Path) -> bool:
        name, now = path.relative_to(self._root).as_posix(), file_stat(path)
        if self._linked and path.is_symlink() and path.resolve().is_relative_to(self._linked):
            return True
        if now is None or name in self._known or name in self._sent:
            return False
        return now in (self._unchanged.get(name), self._code_at_start.get(name))

    # Before the ranks start

    def _scan_initial(self) -> None:
        """Find the files that were there before the script ran, and put back files saved by `rescue`."""
        self._code = self._read_code()
        self._superseded = self._recorded_superseded()
        index = _json(self._index)
        # In place the files outlive the index: the run folder's record tells which of them are this run's.
        self._known = index.get("files") or (self._saved_record() if self._in_place else {})
        found = dict(super()._scan())
        self._used_before = bool(index or self._known)
        if index:
            self._initial_files = set(index.get("before", ()))
        else:
            self._initial_files = set(found) - set(self._code or ()) - set(self._known)
        for name, now in found.items():
            if name in (self._code or ()):
                self._code_at_start[name] = now
            elif name in self._initial_files and name not in self._known:
                self._unchanged[name] = now
        if self._unsaved.is_dir():
            shutil.copytree(self._unsaved, self._root, dirs_exist_ok=True)
            shutil.rmtree(self._unsaved)
        self._scanned = True

    def _restore_files(self) -> int:
        """Download the saved files, except where the local copy is the same or has been changed since its upload."""
        saved = self._saved_record()
        times = {name: each["modified_ns"] for name, each in saved.items()}
        entries = self._entries()
        count = 0
        # Oldest first, with their modification times: scripts look for the newest file.
        for name, entry in sorted(entries.items(), key=lambda item: (times.get(item[0], 0), item[0])):
            if self._register_if_current(name, entry):
                continue
            path = self._root / name
            if self._in_place and path.exists():
                self._log(
                    f"not restored: {name} exists in your folder; the saved one is in the run folder's files/workdir/"
                )
                continue
            if self._download(entry, path):
                if name in times:
                    os.utime(path, ns=(times[name], times[name]))
                self._register(name, entry.version, saved.get(name, {}))
                count += 1
        for name in self._known.keys() - entries.keys():
            if not self._in_place and file_stat(self._root / name) == _recorded_stat(self._known[name]):
                (self._root / name).unlink(missing_ok=True)  # a later attempt on another machine has removed it
        return count

    def _register_if_current(self, name: str, entry: ObjectInfo) -> bool:
        """Return whether the local copy is the one in the store or a newer one; register it if it is the same."""
        known, now = self._known.get(name), file_stat(self._root / name)
        if now is None or known is None or known.get("version") != entry.version:
            return False
        self._attempts[name] = int(known.get("attempt") or 0)
        if now == _recorded_stat(known):
            self._register(name, entry.version, known)
        return True

    def _register(self, name: str, version: str, recorded: Mapping[str, Any]) -> None:
        found = file_stat(self._root / name)
        if found is not None:
            self._sent[name] = self._last_scan[name] = found
            self._versions[name] = version
            self._attempts[name] = int(recorded.get("attempt") or 0)
            if recorded.get("sha256"):
                self._hashes[name] = str(recorded["sha256"])

    def _move_aside(self, last_attempt: int) -> PrepareResult:
        if not last_attempt:
            return PrepareResult()
        entries = self._entries()
        if not self._prepared:
            for name, entry in entries.items():
                self._register_if_current(name, entry)
        if self._used_before or self._prepared:
            self._sync(final=True)  # the last files of a killed attempt are not in the store yet
        to = f"{self._base}{EARLIER}a{last_attempt:04d}/"
        moved = [move(self._store, entry.key, to + name) for name, entry in self._entries().items()]
        self._remove_written()
        for name, _ in self._scan():
            self._log(f"{name} is as the earlier attempt left it: only a new run uploads it again")
        self._sent, self._last_scan, self._versions, self._hashes, self._attempts = {}, {}, {}, {}, {}
        return PrepareResult(moved=len(moved), moved_to=to)

    def _remove_written(self) -> None:
        """Remove the script's files. Without a listing of the code archive they are not known, so remove nothing."""
        if self._in_place:  # they are the user's: only what is written from now on is saved
            self._unchanged.update(self._scan())
            return
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
            if self._unchanged.get(name) == now or self._is_unchanged_code(name, now):
                continue
            if self._keep and not matches_any(name, self._keep):
                self._uncovered[name] = now.size
                continue
            yield name, now

    def _choose(self, found: dict[str, FileStat], final: bool) -> dict[str, FileStat]:
        """Return the files to save: all but input data, unless `keep` names the files, and what exceeds the limit."""
        if not self._keep:
            alone = self.finished and not self.has_other_checkpoint()
            self._held = self._input.held_back(found, self._sent, final=final, finished=alone)
        kept = {name: now for name, now in found.items() if name not in self._held}
        out = over_limit(kept, self._sent, self._limit)
        if out and not self._over_limit:
            self._log(
                f"the script's files exceed {format_size(self._limit)} (keep_limit in the job file), so not all are "
                f"kept: the newest checkpoints are kept first"
            )
        self._over_limit = {name: found[name].size for name in out}
        return {name: now for name, now in kept.items() if name not in out}

    # Checkpoints of earlier attempts

    def _may_delete(self, name: str, *, still_here: bool) -> bool:
        """Return False for a checkpoint of an earlier attempt that this attempt has removed and not yet passed."""
        if still_here or self.finished or not is_checkpoint(name) or not self._is_earlier(name):
            return True
        return has_later(name, [each for each in self._sent if not self._is_earlier(each)])

    def _before_write(self, name: str) -> None:
        """Copy a checkpoint of an earlier attempt aside before this attempt's replaces it."""
        if name in self._sent and self._is_earlier(name) and is_checkpoint(name) and not self.finished:
            to = f"{self._base}{EARLIER}a{self._attempts[name]:04d}/{name}"
            try:
                self._superseded.append(copy(self._store, self._prefix + name, to))
            except NotThere:
                pass
            copies = [key for key in self._superseded if key.endswith(f"/{name}")]
            for key in copies[:-MAX_SUPERSEDED]:
                self._store.delete(key)
                self._superseded.remove(key)
        self._attempts[name] = self._attempt

    def _is_earlier(self, name: str) -> bool:
        return 0 < self._attempts.get(name, self._attempt) < self._attempt

    def _delete_superseded(self) -> None:
        while self._superseded:
            self._store.delete(self._superseded[-1])
            self._superseded.pop()

    def _is_unchanged_code(self, name: str, now: FileStat) -> bool:
        archived = (self._code or {}).get(name)
        if archived is not None and self._in_place and name.endswith(_SOURCES):
            return True  # the user is editing it
        if archived is None or self._changed.get(name) == now:
            return False
        if self._code_at_start.get(name, now) != now:  # written by the program, be it with the same content
            self._changed[name] = now
            return False
        if archived == (now.size, _sha256_or_empty(self._root / name) if now.size == archived[0] else ""):
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
            if all(os.path.exists(os.path.join(path, mark)) for mark in (PLAN, SUBMISSION)):
                continue  # a run folder, such as one that was pulled
            if os.path.islink(path) and not Path(path).resolve().is_relative_to(self._root.resolve()):
                self._skip(path, "is a link that points outside the folder")
                continue
            chosen.append(name)
        return chosen

    def _stat_file(self, path: Path) -> FileStat | None:
        if _is_excluded(path.name) or str(path) in self._excluded:
            return None
        if self._linked and path.is_symlink() and path.resolve().is_relative_to(self._linked):
            return None
        return super()._stat_file(path)

    def _reserved(self, prefix: str, name: str) -> bool:
        return False

    # Records

    def _entries(self) -> dict[str, ObjectInfo]:
        return {entry.key[len(self._prefix) :]: entry for entry in self._store.list(self._prefix)}

    def _saved_record(self) -> dict[str, dict[str, Any]]:
        """Return what the run folder records of each saved file; empty if the record is missing or damaged."""
        try:
            files = (RunFolder(self._store).read_json(self._record_key) or {}).get("files", {})
            return {str(name): {**each, "modified_ns": int(each["modified_ns"])} for name, each in files.items()}
        except (BadPlan, AttributeError, KeyError, TypeError, ValueError):
            self._log(f"{self._record_key} is damaged: restored files have no modification times")
            return {}

    def _recorded_superseded(self) -> list[str]:
        try:
            record = RunFolder(self._store).read_json(self._record_key) or {}
        except BadPlan:
            return []
        return [str(key) for key in record.get("superseded", ()) if str(key).startswith(f"{self._base}{EARLIER}")]

    def _record(self) -> None:
        """Write the index of saved files to disk and to the store.

        The next start in this folder reads the local one to tell which copy of a file is newer; a start elsewhere reads
        the modification times from the store.
        """
        left_out = self.left_out
        changed = self._sent != self._recorded or left_out != self._recorded_left_out
        if not changed and self._index.exists():
            return
        files = {name: self._file_record(name, state) for name, state in self._sent.items()}
        record = {"before": sorted(self._initial_files), "files": files}
        self._index.parent.mkdir(parents=True, exist_ok=True)
        partial = self._index.with_suffix(".part")
        partial.write_text(json.dumps(record))
        partial.replace(self._index)
        if changed:
            saved: dict[str, Any] = {"files": files}
            saved |= {"not_kept": [asdict(each) for each in left_out]} if left_out else {}
            saved |= {"superseded": self._superseded} if self._superseded else {}
            RunFolder(self._store).write_json(self._record_key, saved)
        self._recorded, self._recorded_left_out = dict(self._sent), left_out
        self._warn_if_large()

    def _file_record(self, name: str, state: FileStat) -> dict[str, Any]:
        return {
            **asdict(state),
            "version": self._versions.get(name),
            "sha256": self._hashes.get(name),
            "attempt": self._attempts.get(name, self._attempt),
        }

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
    plan: Plan,
    folder: RunFolder,
    workdirs: NodeFolders,
    *,
    node: int,
    env: Mapping[str, str],
    secrets: Sequence[Path] = (),
    log: Callable[[str], None],
) -> Workdir | None:
    """Return the working folder's sync, or None if there is nothing to save.

    None for a recipe, for a folder that was not chosen for this run, and for a folder that another node syncs.
    """
    if not is_project(plan.job) or not env.get("HEADWAY_CODE_DIR") or (node and is_shared(plan)):
        return None
    outputs = local_path(folder.url.rpartition("/")[0])
    excluded = [
        workdirs.work,
        workdirs.spool,
        workdirs.files,
        workdirs.resume,
        *secrets,
        *_own_folders(outputs, workdirs.code),
    ]
    return Workdir(
        workdirs.code,
        folder.store,
        node=node,
        code=lambda: code_listing(folder, plan.code.sha256),
        state_dir=workdirs.spool.parent,
        excluded=excluded,
        keep=tuple(map(str, plan.job.get("keep") or ())),
        limit=int(plan.job.get("keep_limit") or KEEP_LIMIT),
        in_place=bool(env.get("HEADWAY_IN_PLACE")),
        linked=plan.project,
        log=log,
    )


def _own_folders(outputs: Path | None, root: Path) -> tuple[Path, ...]:
    """Return what Headway itself writes to the outputs beside run folders, which the scan recognises.

    Programs write to a folder of that name too: TensorBoard's and YOLO's default is `runs`, as ours is.
    """
    return () if outputs is None or outputs == root else (outputs / "code", outputs / "data")


def is_shared(plan: Plan) -> bool:
    """Return whether all nodes share one working folder.

    Slurm's is in the outputs; Docker's is mounted where the job brings its own image.
    """
    shared = plugin_of(plan.kind, plan.plugins).shared_workdir
    return shared == "yes" or (shared == "ready-image" and is_foreign_image(plan.job))


def code_listing(folder: RunFolder, sha256: str) -> Code | None:
    """Read the launcher's listing of the code archive; None if there is none or it describes another archive."""
    record = folder.read_json(CODE_LISTING)
    if record is None or record.get("sha256") != sha256:
        return None
    return {str(name): (int(size), str(digest)) for name, (size, digest) in record["files"].items()}


def move(store: Store, source: str, to: str) -> str:
    """Move an object to another key; return that key. Stores have no rename: copy completely, then delete."""
    folder = local_path(store.url)
    if folder is None:
        copy(store, source, to)
        store.delete(source)
        return to
    (folder / to).parent.mkdir(parents=True, exist_ok=True)
    (folder / source).replace(folder / to)
    _remove_empty((folder / source).parent, folder)
    return to


def copy(store: Store, source: str, to: str) -> str:
    """Copy an object to another key; return that key. In a folder, both names share the content: it is never edited."""
    folder = local_path(store.url)
    if folder is not None:
        (folder / to).parent.mkdir(parents=True, exist_ok=True)
        (folder / to).unlink(missing_ok=True)
        try:
            os.link(folder / source, folder / to)
            return to
        except FileNotFoundError:
            raise NotThere(f"{source} is gone", where=store.url) from None
        except OSError:  # the file system has no hard links
            pass
    with tempfile.TemporaryDirectory(prefix="headway-copy-") as scratch:
        path = Path(scratch, "object")
        download(store, store.stat(source), path)
        store.write(to, path)
    return to


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


def _sha256_or_empty(path: Path) -> str:
    try:
        return file_sha256(path)
    except OSError:
        return ""


def _remove_empty(folder: Path, root: Path) -> None:
    """Remove a folder and its parents, up to but not including the root, as long as they are empty."""
    while folder != root and folder.is_relative_to(root):
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
