"""Read Python's tracebacks in a program's output: the exception, its frames, and the innermost line of the project."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")  # as torch.distributed prints them
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in .+)?$')
_ERROR = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_NO_MODULE = re.compile(r"^\S*python[\d.]*: (?P<message>No module named \S+|can't open file .+)$")
_INSTALLED = ("site-packages", "dist-packages")  # folders of libraries, wherever they are
# Errors of networks, disks, memory and other machines: the same code may succeed the next time.
_TRANSIENT_KINDS = re.compile(
    r"Connect|Timeout|Timed|URLError|HTTPError|SSL|Socket|Disconnected|IncompleteRead|BrokenPipe|EOFError|Encoding"
    r"|ProtocolError|Unavailable|Throttl|TooManyRequests|RateLimit|ServerError|ServiceError|Dist\w*Error|OutOfMemory"
    r"|MemoryError|Interrupt|^OSError$|^IOError$|^BlockingIOError$|Retry|Temporary|Transient|Unreachable|gaierror"
)
_TRANSIENT_MESSAGES = re.compile(
    r"CUDA error|CUDA out of memory|out of memory|NCCL|gloo|cuDNN|DataLoader worker|[Cc]onnection|timed out|[Tt]imeout"
    r"|temporarily|unavailable|Address already in use|No space left"
)
_FATAL_KINDS = ("ModuleNotFoundError", "ImportError", "SyntaxError", "IndentationError", "TabError")


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of source that a traceback names."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class PythonError:
    """An exception that ended a program, with the frames of its traceback, outermost first."""

    kind: str
    message: str = ""
    frames: tuple[Frame, ...] = ()

    @property
    def is_fatal(self) -> bool:
        """Whether the same code fails again at any time: a module is missing, or a file is not Python."""
        return self.kind in _FATAL_KINDS

    @property
    def is_transient(self) -> bool:
        """Whether a network, a disk, memory or another machine may be the cause, and not the code."""
        return bool(_TRANSIENT_KINDS.search(self.kind) or _TRANSIENT_MESSAGES.search(self.message))

    def own_frame(self, root: str) -> Frame | None:
        """Return the innermost frame in a file below `root`, by its path relative to it; None if there is none."""
        for frame in reversed(self.frames):
            name = relative_source(frame.file, root)
            if name:
                return Frame(name, frame.line)
        return None

    def describe(self, root: str) -> str:
        """Return the exception and where it was raised, as in `ValueError at train.py:6`."""
        frame = self.own_frame(root) or (self.frames[-1] if self.frames else None)
        return self.kind if frame is None else f"{self.kind} at {frame.file}:{frame.line}"


def last_error(lines: Iterable[str]) -> PythonError | None:
    """Return the last exception that a program printed with its traceback; None if it printed none."""
    found = None
    for error in _errors(lines):
        found = error
    return found


def relative_source(file: str, root: str) -> str:
    """Return a source file's path relative to the project's folder; "" if it is not one of the project's own."""
    if not root or file.startswith("<"):
        return ""
    path = PurePosixPath(os.path.normpath(os.path.join(root, file)))
    if any(part in _INSTALLED for part in path.parts) or not path.is_relative_to(root):
        return ""
    return path.relative_to(root).as_posix()


def _errors(lines: Iterable[str]) -> Iterator[PythonError]:
    frames: list[Frame] = []
    for line in lines:
        text = _RANK_PREFIX.sub("", line.rstrip())
        frame = _FRAME.match(text)
        if frame:
            frames.append(Frame(frame["file"], int(frame["line"])))
        elif text.endswith("Traceback (most recent call last):"):
            frames = []
        elif (start := _NO_MODULE.match(text)) is not None:
            kind = "ModuleNotFoundError" if start["message"].startswith("No module") else "FileNotFoundError"
            yield PythonError(kind, start["message"])
        elif frames and (error := _ERROR.match(text)) is not None:
            yield PythonError(error["kind"].rpartition(".")[2], error["message"] or "", tuple(frames))
            frames = []
