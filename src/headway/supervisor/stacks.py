"""Collect the stacks of stuck ranks, and find out which rank the others wait for, and in which line it is."""

from __future__ import annotations

import linecache
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headway.core.python_errors import relative_source
from headway.core.retry import poll
from headway.integrations.stacks import STACK_SIGNAL
from headway.supervisor.process_load import process_state
from headway.supervisor.processes import descendants

_ANSWER_S, _SETTLED_S = 3.0, 0.1  # how long a process may take to write its stacks
_MAX_PROCESSES = 8  # per rank, of which stacks are asked for
_MAX_TEXT = 60_000  # characters per rank: the message to node 0 is at most 1 MiB
_PY_SPY_S = 15.0
_THREAD = re.compile(r"^(?P<current>Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")
_FRAME = re.compile(r'^ +File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)$')
_PY_SPY_FRAME = re.compile(r"^ +(?P<name>\S+) \((?P<file>[^()]+):(?P<line>\d+)\)$")
_COLLECTIVES = re.compile(r"/torch/distributed/|/headway/training/distributed/|/torch/nn/parallel/|deepspeed/comm")
_BACKWARD = re.compile(r"/torch/autograd/|/torch/_tensor\.py")
_LOADERS = re.compile(r"/torch/utils/data/|/headway/data/loading/|/multiprocessing/|/tensorflow/python/data/")
STATES = {"T": "stopped by a signal (SIGSTOP)", "t": "stopped by a debugger", "D": "waiting for a disk or file system"}


@dataclass(frozen=True, kw_only=True, slots=True)
class RankStack:
    """What one rank does."""

    rank: int
    state: str = ""  # a state that explains the stall by itself; "" if the rank runs or sleeps as usual
    waits_for: str = ""  # other ranks, the data loader, a pipe; "" if it is in its own code
    at: str = ""  # the innermost line of the project: train.py:12
    source: str = ""  # that line
    text: str = ""  # all stacks

    @property
    def place(self) -> str:
        return f"{self.at}: {self.source}" if self.source else self.at

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Answer:
    text: str = ""
    frames: list[tuple[str, int]] = field(default_factory=list)  # of the main thread, innermost first


def stack_file(folder: Path, rank: int) -> Path:
    return folder / f"stacks-r{rank}"


def read_stacks(ranks: Mapping[int, int], folder: Path, code: str) -> list[RankStack]:
    """Return the stacks of this node's ranks (rank -> pid). Takes seconds: call it on a thread.

    `folder` has the files that the ranks write to, `code` is the project's folder.
    """
    return [_rank_stack(rank, pid, stack_file(folder, rank), code) for rank, pid in sorted(ranks.items())]


def _rank_stack(rank: int, pid: int, file: Path, code: str) -> RankStack:
    below = sorted(descendants(pid, set()))
    state = STATES.get(process_state(pid), "")
    texts: list[str] = []
    frames: list[tuple[str, int]] = []
    for process in [pid, *below][:_MAX_PROCESSES]:
        answer = _ask(process, file)
        texts.append(f"process {process} ({_command(process)})\n{answer.text}")
        frames = frames or answer.frames
    waits_for = "" if state else _waits_for(frames, below, pid)
    at, source = _own_line(frames, code)
    text = "\n".join(texts)[:_MAX_TEXT]
    return RankStack(rank=rank, state=state, waits_for=waits_for, at=at, source=source, text=text)


def _ask(pid: int, file: Path) -> _Answer:
    """Ask a process for its stacks by the signal, else by py-spy; else say what the kernel shows."""
    state = process_state(pid)
    if _catches(pid) and state not in ("T", "t"):
        text = _signal(pid, file)
        if text:
            return _Answer(text, _main_frames(text))
    tool = shutil.which("py-spy")
    if tool is not None and "python" in _command(pid):
        text = _py_spy(tool, pid)
        if text:
            return _Answer(text, [(each["file"], int(each["line"])) for each in _py_spy_frames(text)])
    return _Answer(f"  state {state or 'gone'}, waiting in {_kernel_function(pid) or 'unknown'}")


def _signal(pid: int, file: Path) -> str:
    before = file.stat().st_size if file.exists() else 0
    try:
        os.kill(pid, STACK_SIGNAL)
    except OSError:
        return ""
    size, changed = before, time.monotonic()
    for _ in poll(0.02, within_s=_ANSWER_S):
        now = file.stat().st_size if file.exists() else 0
        if now != size:
            size, changed = now, time.monotonic()
        elif size > before and time.monotonic() - changed > _SETTLED_S:
            break
    if size == before:
        return ""
    with file.open("rb") as opened:
        opened.seek(before)
        return opened.read().decode("utf-8", "replace").rstrip()


def _catches(pid: int) -> bool:
    """Whether a process has a handler for the signal: any other would be ended by it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    mask = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    return mask is not None and bool(int(mask[1], 16) >> (STACK_SIGNAL - 1) & 1)


def _py_spy(tool: str, pid: int) -> str:
    words = [tool, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_PY_SPY_S, check=True)
    except (OSError, subprocess.SubprocessError):  # no permission to look into it
        return ""
    return done.stdout.rstrip()


def _py_spy_frames(text: str) -> list[re.Match[str]]:
    """Return the frames of py-spy's main thread."""
    main = text.partition("MainThread")[2].partition("\nThread ")[0]
    return [found for line in main.splitlines() if (found := _PY_SPY_FRAME.match(line))]


def _main_frames(text: str) -> list[tuple[str, int]]:
    """Return the frames of the thread that took the signal, which is the main thread if the kernel had a choice."""
    blocks: list[list[tuple[str, int]]] = []
    current = -1
    for line in text.splitlines():
        start = _THREAD.match(line)
        if start:
            current = len(blocks) if start["current"] == "Current thread" else current
            blocks.append([])
        elif blocks and (frame := _FRAME.match(line)):
            blocks[-1].append((frame["file"], int(frame["line"])))
    return blocks[current] if blocks else []


def _waits_for(frames: Sequence[tuple[str, int]], below: Sequence[int], pid: int) -> str:
    inner = [file for file, _ in frames[:6]]
    if any(_COLLECTIVES.search(file) for file in inner) or (inner and _BACKWARD.search(inner[0])):
        return "other ranks"
    if any(_LOADERS.search(file) for file in inner):
        stopped = [each for each in below if process_state(each) in ("T", "t")]
        return "a stopped data loader worker" if stopped else "the data loader"
    if any("pipe_write" in _kernel_function(each) for each in (pid, *below)):
        return "the reader of a pipe that is full"
    return ""


def _own_line(frames: Sequence[tuple[str, int]], code: str) -> tuple[str, str]:
    """Return the innermost line of the project, or else the innermost of all, and its source."""
    for file, line in frames:
        name = relative_source(file, code)
        if name:
            return f"{name}:{line}", linecache.getline(str(Path(code, name)), line).strip()[:120]
    if not frames:
        return "", ""
    file, line = frames[0]
    return f"{file}:{line}", linecache.getline(file, line).strip()[:120]


def _kernel_function(pid: int) -> str:
    try:
        found = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return ""
    return "" if found == "0" else found


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "ended"
    return b" ".join(words[:4]).decode("utf-8", "replace")[:100].strip()


def stuck_rank(stacks: Sequence[RankStack]) -> RankStack | None:
    """Return the rank that the others wait for: a stopped one, or one that is not in a collective operation."""
    if not stacks:
        return None
    for wanted in (
        [each for each in stacks if each.state],
        [each for each in stacks if each.waits_for != "other ranks"],
        [each for each in stacks if sum(other.at == each.at for other in stacks) * 2 < len(stacks)],
    ):
        if wanted:
            return wanted[0]
    return stacks[0]


def describe_stuck(stacks: Sequence[RankStack]) -> str:
    """Say which rank is stuck where, and what the others do."""
    stuck = stuck_rank(stacks)
    if stuck is None:
        return "no rank answered"
    one = len(stacks) == 1
    what = f"rank {stuck.rank}" + (f" at {stuck.place}" if stuck.at else "")
    if stuck.state:
        what = f"rank {stuck.rank} is {stuck.state}" + (f", at {stuck.place}" if stuck.at else "")
    elif stuck.waits_for == "other ranks" and not one:
        lines = sorted({each.at for each in stacks if each.at})
        return (
            f"all ranks wait for each other{': ' if lines else ''}{', '.join(_where(stacks, line) for line in lines)}"
        )
    elif stuck.waits_for:
        what += f", waiting for {stuck.waits_for}"
    waiting = [each for each in stacks if each is not stuck and each.waits_for == "other ranks"]
    others = "1 other rank waits" if len(waiting) == 1 else f"{len(waiting)} other ranks wait"
    return f"{what}; {others} for it" if waiting else what


def _where(stacks: Sequence[RankStack], line: str) -> str:
    ranks = ", ".join(str(each.rank) for each in stacks if each.at == line)
    return f"rank {ranks} at {line}"
