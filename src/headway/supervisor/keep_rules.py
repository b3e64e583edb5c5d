"""Tell checkpoints and logs from other files by their names, and choose what to keep within a limit. Pure functions.

`file_sync` and `workdir` apply these rules.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_SMALL_BYTES = 1_000_000  # smaller files are kept first: logs, configurations, vocabularies
_CHECKPOINT_SUFFIXES = (
    ".pt", ".pth", ".ckpt", ".safetensors", ".h5", ".hdf5", ".keras", ".npz", ".joblib", ".pkl", ".pickle", ".onnx",
    ".pb", ".tflite", ".msgpack", ".gguf", ".orbax", ".distcp",
)  # fmt: skip
_CHECKPOINT_NAMES = re.compile(
    r"(?:^|[/_.-])(?:checkpoint|ckpt|model|weight|best|last|final|latest|epoch|optimi[sz]er|optim|scheduler|adapter"
    r"|trainer_state|state_dict|backup)",
    re.IGNORECASE,
)
_LOG_SUFFIXES = (".log", ".txt", ".out", ".err", ".jsonl", ".csv", ".tsv")
_EVENT_FILE = "events.out.tfevents"


@dataclass(frozen=True, slots=True)
class FileStat:
    """Size, modification time and inode of a file, compared to detect changes without reading it."""

    size: int
    modified_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Files of a program that are not kept: a file or folder, how many files it has, their size, and why."""

    path: str
    files: int
    bytes: int
    why: str

    def __str__(self) -> str:
        count = f"{self.files:,} files, " if self.path.endswith("/") else ""
        return f"{self.path} ({count}{format_size(self.bytes)}) {self.why}"


def is_checkpoint(name: str) -> bool:
    """Return whether a file may hold what a program has learnt, by its suffix or a word in its path."""
    return name.lower().endswith(_CHECKPOINT_SUFFIXES) or bool(_CHECKPOINT_NAMES.search(name))


def is_log(name: str) -> bool:
    """Return whether a program appends to a file line by line, so that any beginning of it is worth keeping."""
    base = PurePosixPath(name).name
    return base.lower().endswith(_LOG_SUFFIXES) or base.startswith(_EVENT_FILE)


def has_later(name: str, others: Iterable[str]) -> bool:
    """Return whether the others have a later file of the same series: `step-505.pt` has one in `step-900.pt`."""
    series, numbers = _series(name)
    return any(other != name and _series(other)[0] == series and _series(other)[1] >= numbers for other in others)


def _series(name: str) -> tuple[str, tuple[int, ...]]:
    return re.sub(r"\d+", "#", name), tuple(map(int, re.findall(r"\d+", name)))


def over_limit(found: Mapping[str, FileStat], sent: Container[str], limit: int) -> set[str]:
    """Return the files that do not fit into the limit.

    Small files are kept first, then checkpoints, the newest first, then others: those in the run folder already, then
    the newest.
    """
    if sum(each.size for each in found.values()) <= limit:
        return set()

    def rank(name: str) -> tuple[bool, bool, bool, int]:
        each, checkpoint = found[name], is_checkpoint(name)
        return each.size >= _SMALL_BYTES, not checkpoint, not checkpoint and name not in sent, -each.modified_ns

    left, out = limit, set()
    for name in sorted(found, key=rank):
        if found[name].size <= left:
            left -= found[name].size
        else:
            out.add(name)
    return out


def summarize(sizes: Mapping[str, int], why: str) -> list[LeftOut]:
    """Return the largest files one by one and the number of the others."""
    ordered = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    shown = [LeftOut(name, 1, size, why) for name, size in ordered[:_SHOWN]]
    rest = ordered[_SHOWN:]
    return shown if not rest else [*shown, LeftOut("others/", len(rest), sum(size for _, size in rest), why)]


_SHOWN = 5


def open_for_writing(root: Path) -> set[int]:
    """Return the inodes of files below a folder that other processes have open for writing, as far as /proc shows."""
    prefix, own = f"{root.resolve()}/", str(os.getpid())
    found: set[int] = set()
    for pid in filter(str.isdigit, _listdir("/proc")):
        if pid == own:
            continue
        for number in _listdir(f"/proc/{pid}/fd"):
            inode = _written_inode(pid, number, prefix)
            if inode is not None:
                found.add(inode)
    return found


def _written_inode(pid: str, number: str, prefix: str) -> int | None:
    fd = f"/proc/{pid}/fd/{number}"
    try:
        if not os.readlink(fd).startswith(prefix):
            return None
        flags = Path(f"/proc/{pid}/fdinfo/{number}").read_text().partition("flags:")[2].split()[0]
        return os.stat(fd).st_ino if int(flags, 8) & (os.O_WRONLY | os.O_RDWR) else None
    except (OSError, IndexError, ValueError):  # closed, or the process is gone
        return None


def _listdir(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:  # the process is gone or another user's, or this is not Linux
        return []


def format_size(count: int) -> str:
    """Format a number of bytes, as in 12.4 MB."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
