"""Recognise input data that a program downloads or unpacks beside its code, which need not be kept.

The rule is careful: to lose a user's output is worse than to keep a data set. A folder, or an archive beside the code,
is input only as a whole and only if all of this holds:

- it appeared within `WINDOW_S` of the start, was complete within `FILL_S`, and did not change afterwards;
- it is large (`MIN_BYTES` or `MIN_FILES`);
- it looks like data: its name is a usual one for data sets, or it contains an archive, or its files are older than the
  run, as after unpacking;
- nothing in it looks like a checkpoint, and its name is not one of outputs;
- a run that finished has kept a checkpoint: otherwise this may be what the program was run for.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

from headway.supervisor.keep_rules import FileStat, LeftOut, is_checkpoint, is_log

WINDOW_S, FILL_S = 180.0, 900.0
MIN_BYTES, MIN_FILES = 10_000_000, 200
_OLD_NS = 3600 * 10**9  # files older than the run by this much were unpacked with their times
_ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".gz", ".bz2", ".xz", ".7z", ".rar", ".zst")
_INPUT_NAMES = re.compile(
    r"\.?(?:(?:my|raw|training|train)?[_-]?data(?:sets?)?(?:[_-]?(?:raw|dir|root|cache))?|raw|downloads?|downloaded|inputs?"
    r"|corpus|corpora|cache|hf[_-]?cache|huggingface|(?:fashion)?[_-]?mnist.*|cifar.*|coco.*|imagenet.*|flickr.*"
    r"|vizwiz.*|voc.*|celeba.*|squad.*|glue.*|wikitext.*|movielens.*|ml-\d+\w*)",
    re.IGNORECASE,
)
_OUTPUT_NAMES = re.compile(
    r"out|result|log|run|wandb|mlruns|tensorboard|sample|pred|figure|plot|export|artifact|save|report|eval|metric|generat"
    r"|submission|process|feature|embedding|history",
    re.IGNORECASE,
)
WHY = "looks like downloaded input data"
KEEP_HINT = "keep: ['**'] in the job file keeps everything"


@dataclass(slots=True)
class _Group:
    """A folder or archive directly below the working folder that is new."""

    files: dict[str, FileStat] = field(default_factory=dict)
    seen_s: float = 0.0  # when it was first seen
    verdict: str = ""  # "input", "output", or "" while it may still be either


class InputData:
    """Remembers, over the scans of an attempt, which new folders and archives look like input data."""

    def __init__(self, log: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> None:
        self._log, self._now = log, now
        self._groups: dict[str, _Group] = {}
        self._began_s, self._began_ns = now(), time.time_ns()

    def start(self) -> None:
        """Note that a program starts now. What is known of folders stays known."""
        self._began_s, self._began_ns = self._now(), time.time_ns()

    def held_back(
        self, found: Mapping[str, FileStat], sent: Container[str], *, final: bool = False, finished: bool = False
    ) -> set[str]:
        """Return those of the new files that are not to be kept, at least not yet.

        `sent` are files that are in the run folder already; `final` is the last call of a run. With `finished`, the
        program has done its work and left no checkpoint anywhere but among these files, if any.
        """
        groups: dict[str, dict[str, FileStat]] = {}
        for name, each in found.items():
            groups.setdefault(_group_of(name), {})[name] = each
        held: set[str] = set()
        for name, files in groups.items():
            group = self._groups.setdefault(name, _Group(seen_s=self._now() - self._began_s))
            self._judge(name, group, files, sent, final=final)
            if group.verdict != "output":
                held |= files.keys()
        if finished and not any(is_checkpoint(name) and not is_log(name) for name in found):
            for group in self._groups.values():
                group.verdict = "output"
            return set()
        return held

    def left_out(self) -> list[LeftOut]:
        """Return the folders and archives that are input data."""
        return [
            LeftOut(name, len(group.files), sum(each.size for each in group.files.values()), WHY)
            for name, group in sorted(self._groups.items())
            if group.verdict == "input"
        ]

    def _judge(
        self, name: str, group: _Group, files: dict[str, FileStat], sent: Container[str], *, final: bool
    ) -> None:
        changed = any(group.files.get(file) != each for file, each in files.items())
        was_input, group.files = group.verdict == "input", files
        if group.verdict == "output":
            return
        elapsed = self._now() - self._began_s
        if self._is_output(name, group, files, sent) or (changed and (was_input or elapsed > FILL_S)):
            group.verdict = "output"
            if was_input:
                self._log(f"{name} has changed since it was taken for input data: it is kept")
        elif not was_input and (final or (not changed and elapsed >= WINDOW_S)):
            size = sum(each.size for each in files.values())
            group.verdict = "input" if size >= MIN_BYTES or len(files) >= MIN_FILES else "output"
            if group.verdict == "input" and not final:  # at the end everything that is not kept is listed
                self._log(f"not kept: {LeftOut(name, len(files), size, WHY)}; {KEEP_HINT}")

    def _is_output(self, name: str, group: _Group, files: Mapping[str, FileStat], sent: Container[str]) -> bool:
        if group.seen_s > WINDOW_S or any(file in sent or is_checkpoint(file) for file in files):
            return True
        return bool(_OUTPUT_NAMES.search(name)) or not self._looks_like_data(name, files)

    def _looks_like_data(self, name: str, files: Mapping[str, FileStat]) -> bool:
        if not name.endswith("/"):
            return name.lower().endswith(_ARCHIVES)
        if _INPUT_NAMES.fullmatch(name.rstrip("/")) or any(file.lower().endswith(_ARCHIVES) for file in files):
            return True
        old = sum(each.modified_ns < self._began_ns - _OLD_NS for each in files.values())
        return old >= 0.9 * len(files)


def _group_of(name: str) -> str:
    top, slash, _ = name.partition("/")
    return f"{top}/" if slash else name
