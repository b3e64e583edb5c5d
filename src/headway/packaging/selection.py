"""Choose the files of a project that are sent: one set of rules for the code archive and for images.

Never sent: version control, environments and caches. By default not sent, and named in the plan: files whose name looks
like a secret, data folders, pictures, archives, weights, outputs of earlier runs, and whatever exceeds a limit.
`.gitignore`, `.dockerignore` and `.headwayignore` hold, in this order: the last pattern that matches a file decides,
and `!pattern` sends a file that would stay out; for a secret, only its full name in `.headwayignore` does. Files that
the job itself names are always sent. `secret_gate` looks at the content of what was chosen.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from headway.core.errors import BadInput
from headway.core.format import size as size_text
from headway.rundir.layout import PLAN, SUBMISSION
from headway.storage.secret_scan import looks_secret_by_name

if TYPE_CHECKING:
    from pathspec import PathSpec, Pattern

    _Specs = dict[Path, list[PathSpec[Pattern]]]  # by folder, the first that mentions a file decides

ALWAYS_IGNORED = (".git", ".hg", ".svn", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".pytest_cache",
         ".ruff_cache", ".ipynb_checkpoints", ".DS_Store", ".idea", ".tox", "*.pyc", "*.egg-info")  # fmt: skip
WEIGHTS = ("*.bin", "*.ckpt", "*.gguf", "*.h5", "*.joblib", "*.keras", "*.onnx", "*.pb", "*.pickle", "*.pkl", "*.pt",
           "*.pth", "*.safetensors", "*.tflite")  # fmt: skip
DATA = ("*.arrow", "*.feather", "*.hdf5", "*.lmdb", "*.npy", "*.npz", "*.parquet", "*.tfrecord", "*.tfrecords")
ARCHIVES = ("*.7z", "*.bz2", "*.gz", "*.rar", "*.tar", "*.tar.*", "*.tgz", "*.xz", "*.zip", "*.zst")
MEDIA = ("*.bmp", "*.flac", "*.gif", "*.jpeg", "*.jpg", "*.mp3", "*.mp4", "*.png", "*.tif", "*.tiff", "*.wav",
         "*.webp")  # fmt: skip
LOGS = ("*.log", "events.out.tfevents.*")
DATA_FOLDERS = ("data", "dataset", "datasets")
OUTPUT_FOLDERS = ("checkpoint-*", "checkpoints", "lightning_logs", "mlruns", "output", "outputs", "tb_logs", "wandb")
# Files that a person writes: these are sent from a data folder, too, and are not counted towards MAX_OTHER_FILES.
SOURCES = ("*.bash", "*.c", "*.cc", "*.cfg", "*.cpp", "*.cu", "*.cuh", "*.h", "*.hpp", "*.ini", "*.ipynb", "*.jl",
           "*.md", "*.proto", "*.py", "*.pyi", "*.pyx", "*.r", "*.rs", "*.rst", "*.sh", "*.sql", "*.toml", "*.yaml",
           "*.yml", "Dockerfile*", "LICENSE*", "Makefile", ".gitignore", ".dockerignore", ".headwayignore")  # fmt: skip
MAX_FILE_BYTES: Final = 25_000_000
MAX_PACKAGE_DATA_BYTES: Final = 2_000_000  # word lists and the like beside the code of a package named `data`
MAX_OTHER_FILES: Final = 500  # in one folder and below: more files that are not sources are a data set
MAX_COUNTED: Final = 20_000  # files below a folder that stays out: counting a larger data set would take seconds
GITIGNORE, DOCKERIGNORE, HEADWAYIGNORE = ".gitignore", ".dockerignore", ".headwayignore"


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """A file, several of one kind, or a whole folder that is not sent. `name` of a folder ends with a slash."""

    name: str
    files: int
    bytes: int
    more: bool = False  # only the first MAX_COUNTED files were counted

    def __str__(self) -> str:
        size = size_text(self.bytes)
        if self.files == 1 and not self.name.endswith("/"):
            return f"{self.name} ({size})"
        at_least = "more than " if self.more else ""
        return f"{self.name} ({at_least}{self.files:,} {'file' if self.files == 1 else 'files'}, {size})"


@dataclass(kw_only=True, slots=True)
class Selection:
    """The files of a project by what happens to them. Names are relative to its folder."""

    sent: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    allowed: set[str] = field(default_factory=set)  # by full name in .headwayignore, although it looks like a secret
    left_out: tuple[LeftOut, ...] = ()


def select_files(
    root: Path, own_outputs: Collection[Path], named: Collection[str] = (), mentioned: Collection[str] = ()
) -> Selection:
    """Walk a project and choose the files to send.

    Args:
        root: The project's folder, resolved.
        own_outputs: Folders that Headway itself writes to. They are left out and not named.
        named: Files that the program consists of: sent unless they look like secrets.
        mentioned: Files among its arguments: sent although they are in a data folder, or git or Docker ignores them,
            unless their own names are those of data or weights, which an earlier run may have written there.

    Raises:
        BadInput: For a link to a file outside the folder.
    """
    walk = _Walk(root, own_outputs, named, mentioned)
    for folder, names, files in os.walk(root):
        walk.enter(Path(folder), names, files)
    return walk.result()


class _Walk:
    """Apply ignore files and defaults to one folder of a project after the other."""

    def __init__(
        self, root: Path, own_outputs: Collection[Path], named: Collection[str], mentioned: Collection[str]
    ) -> None:
        self.root, self.own_outputs, self.named, self.mentioned = root, own_outputs, named, mentioned
        self.specs: _Specs = {}
        self.own_specs: _Specs = {}  # .headwayignore alone: the plan does not name what it excludes
        self.descends_all = False  # a `!pattern` may include a file of an excluded folder
        self.selection = Selection()
        self.others: list[LeftOut] = []  # no sources; sent unless a folder has too many of them
        self.out: list[LeftOut] = []

    def enter(self, folder: Path, names: list[str], files: list[str]) -> None:
        """Sort the files of a folder, and reduce `names` to the folders to enter."""
        self._read_ignore_files(folder, files)
        names[:] = [name for name in sorted(names) if self._descends(folder / name)]
        for name in sorted(files):
            path = folder / name
            verdict = self._verdict(path)
            if verdict != "skip" and _is_file(path, self.root, verdict):
                self._sort(path, verdict)

    def result(self) -> Selection:
        """Return the selection, after leaving out folders with too many files."""
        crowded = _crowded_folders([entry.name for entry in (*self.others, *self.out)])
        for entry in self.others:
            if crowded & {str(parent) for parent in PurePosixPath(entry.name).parents}:
                self.out.append(entry)
            else:
                self.selection.sent.append(entry.name)
        self.selection.sent.sort()
        self.selection.left_out = summarize(self.out, self.selection.sent)
        return self.selection

    def _read_ignore_files(self, folder: Path, files: Collection[str]) -> None:
        git, own = _lines(folder, GITIGNORE, files), _lines(folder, HEADWAYIGNORE, files)
        # As in Docker, only the one in the root counts.
        docker = [_from_docker(line) for line in _lines(folder, DOCKERIGNORE, files)] if folder == self.root else []
        self.specs[folder] = [
            *([_last_match_spec([*docker, *own])] if docker or own else []),
            *([_git_spec(git)] if git else []),
        ]
        self.own_specs[folder] = [_last_match_spec(own)] if own else []
        self.selection.allowed |= {_relative(folder / name, self.root) for name in _full_names(own)}
        self.descends_all = self.descends_all or any(line.startswith("!") for line in (*docker, *own))

    def _descends(self, folder: Path) -> bool:
        if folder in self.own_outputs or _matches(folder.name, ALWAYS_IGNORED) or (folder / "pyvenv.cfg").exists():
            return False
        if _is_run_folder(folder) or (folder.name == "code" and any(map(_is_run_folder, folder.parent.iterdir()))):
            return False  # of runs whose outputs are, or were, elsewhere than this run's
        excluded = _decision(self.specs, folder, is_folder=True) is True
        relative = _relative(folder, self.root)
        if not excluded and looks_secret_by_name(folder.name) and not _holds(relative, self.selection.allowed):
            self.selection.secrets.append(relative)
            return False
        if not excluded or self.descends_all or self._holds_named_files(folder):
            return True
        if _decision(self.own_specs, folder, is_folder=True) is not True:
            self._count_ignored(folder)
        return False

    def _holds_named_files(self, folder: Path) -> bool:
        return _holds(_relative(folder, self.root), (*self.named, *self.mentioned))

    def _count_ignored(self, folder: Path) -> None:
        """Name a folder that git or Docker ignores if the program may read it: one of data or weights."""
        relative = folder.relative_to(self.root)
        files, total, is_data = 0, 0, any(_matches(part, DATA_FOLDERS) for part in relative.parts)
        for here, _, names in os.walk(folder):
            for name in names:
                files += 1
                total += os.lstat(os.path.join(here, name)).st_size
                is_data = is_data or _matches(name, (*WEIGHTS, *DATA, *ARCHIVES, *MEDIA))
            if files >= MAX_COUNTED:
                break
        if files and (is_data or files > MAX_OTHER_FILES or total > MAX_FILE_BYTES):
            more = files >= MAX_COUNTED
            self.out.append(LeftOut(name=f"{relative.as_posix()}/", files=files, bytes=total, more=more))

    def _verdict(self, path: Path) -> str:
        """Return what happens to a file: `send`, `send by default`, `leave out`, which the plan names, or `skip`."""
        relative = _relative(path, self.root)
        named = relative in self.named
        decision = None if named else _decision(self.specs, path)
        if decision is True and relative in self.mentioned:
            decision = None
        if _matches(path.name, ALWAYS_IGNORED):
            return "skip"
        if decision is not True and self._is_secret_by_name(relative):
            self.selection.secrets.append(relative)
            return "skip"
        if named or decision is False:
            return "send"
        by_default = self._is_left_out_by_default(relative)
        if decision is True:
            return "leave out" if by_default and _decision(self.own_specs, path) is not True else "skip"
        return "leave out" if by_default else "send by default"

    def _is_secret_by_name(self, relative: str) -> bool:
        return relative not in self.selection.allowed and any(map(looks_secret_by_name, relative.split("/")))

    def _is_left_out_by_default(self, relative: str) -> bool:
        *folders, name = relative.split("/")
        if _matches(name, (*WEIGHTS, *DATA, *ARCHIVES, *MEDIA, *LOGS)):
            return True
        is_source = _matches(name, SOURCES)
        for depth, folder in enumerate(folders, 1):
            if _matches(folder, DATA_FOLDERS) and not is_source and relative not in self.mentioned:
                return not (self._is_package(folders[:depth]) and self._is_small(relative))
            if _matches(folder, OUTPUT_FOLDERS) and not (is_source and self._is_package(folders[:depth])):
                return True
        return False

    def _is_package(self, folders: list[str]) -> bool:
        return self.root.joinpath(*folders, "__init__.py").exists()

    def _is_small(self, relative: str) -> bool:
        return os.lstat(self.root / relative).st_size <= MAX_PACKAGE_DATA_BYTES

    def _sort(self, path: Path, verdict: str) -> None:
        entry = LeftOut(name=path.relative_to(self.root).as_posix(), files=1, bytes=path.stat().st_size)
        if verdict == "leave out" or (verdict == "send by default" and entry.bytes > MAX_FILE_BYTES):
            self.out.append(entry)
        elif verdict == "send" or _matches(path.name, SOURCES):
            self.selection.sent.append(entry.name)
        else:
            self.others.append(entry)


def _is_run_folder(folder: Path) -> bool:
    return (folder / PLAN).exists() and (folder / SUBMISSION).exists()


def summarize(entries: Iterable[LeftOut], sent: Iterable[str]) -> tuple[LeftOut, ...]:
    """Group files that are not sent, the largest group first.

    A group is the topmost folder of which nothing is sent, or the files of one folder with the same suffix.
    """
    used = {str(parent) for name in sent for parent in PurePosixPath(name).parents}
    groups: dict[str, list[LeftOut]] = defaultdict(list)
    for entry in entries:
        groups[_group(entry.name, used)].append(entry)
    found = [_total(name, group) for name, group in groups.items()]
    return tuple(sorted(found, key=lambda group: (-group.bytes, group.name)))


def _group(name: str, used: Collection[str]) -> str:
    path = PurePosixPath(name)
    folders = [str(parent) for parent in reversed(path.parents)][1:] + ([str(path)] if name.endswith("/") else [])
    unused = next((folder for folder in folders if folder not in used), None)
    if unused is not None:
        return f"{unused}/"
    return name if name.endswith("/") or not path.suffix else str(path.parent / f"*{path.suffix}")


def _total(name: str, group: list[LeftOut]) -> LeftOut:
    alone = len(group) == 1 and not name.endswith("/")
    return LeftOut(
        name=group[0].name if alone else name,
        files=sum(entry.files for entry in group),
        bytes=sum(entry.bytes for entry in group),
        more=any(entry.more for entry in group),
    )


def _lines(folder: Path, name: str, files: Collection[str]) -> list[str]:
    return (folder / name).read_text(encoding="utf-8", errors="replace").splitlines() if name in files else []


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _holds(folder: str, names: Iterable[str]) -> bool:
    return any(name.startswith(f"{folder}/") for name in names)


def _full_names(lines: Iterable[str]) -> Iterable[str]:
    """Return the files that `!name` lines include by their full names: no pattern, no folder."""
    return [line[1:].strip().lstrip("/") for line in lines if re.fullmatch(r"![^*?\[]*[^*?\[/\s]\s*", line)]


def _git_spec(lines: Iterable[str]) -> PathSpec[Pattern]:
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(lines)


def _last_match_spec(lines: Iterable[str]) -> PathSpec[Pattern]:
    """Return a spec in which the last pattern that matches decides, as in Docker.

    In git, `!data/` would not include a file that `data/*` or `*.csv` excludes.
    """
    from pathspec import GitIgnoreSpec, PathSpec

    return PathSpec(GitIgnoreSpec.from_lines(lines).patterns)


def _from_docker(line: str) -> str:
    """Rewrite a pattern of .dockerignore as one of .gitignore: Docker's are relative to the root of the context."""
    text = line.strip()
    if not text or text.startswith("#"):
        return ""
    negation, pattern = ("!", text[1:].strip()) if text.startswith("!") else ("", text)
    pattern = pattern.removeprefix("./").lstrip("/")
    return f"{negation}{pattern}" if pattern.startswith("**/") else f"{negation}/{pattern}"


def _decision(specs: _Specs, path: Path, *, is_folder: bool = False) -> bool | None:
    """Return whether the ignore files exclude a path (True), include it (False), or do not mention it (None)."""
    for base in path.parents:  # the nearest file decides, as in git
        for spec in specs.get(base, ()):
            excluded = spec.check_file(path.relative_to(base).as_posix() + "/" * is_folder).include
            if excluded is not None:
                return excluded
    return None


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return _compiled(patterns).match(name) is not None


@lru_cache(maxsize=32)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return one expression for many patterns: a project may have a hundred thousand files."""
    return re.compile("|".join(map(fnmatch.translate, patterns)))


def _is_file(path: Path, root: Path, verdict: str) -> bool:
    if verdict != "leave out" and path.is_symlink():
        target = path.resolve()
        if not target.is_relative_to(root) or not target.is_file():
            raise BadInput(
                f"{path.relative_to(root)} is a link to {target}, which the training machine would not have",
                where=str(root),
                fix=f"echo {path.relative_to(root).as_posix()} >> .headwayignore, or copy the file",
            )
    return path.is_file()  # not sockets or pipes


def _crowded_folders(names: Collection[str]) -> set[str]:
    """Return the deepest folders below the project's own that hold more than MAX_OTHER_FILES of these files.

    The deepest: a folder of code with one data set inside is not a data set itself.
    """
    counts = Counter(str(parent) for name in names for parent in PurePosixPath(name).parents)
    crowded = {folder for folder, count in counts.items() if count > MAX_OTHER_FILES and folder != "."}
    return {one for one in crowded if not any(other.startswith(f"{one}/") for other in crowded)}
