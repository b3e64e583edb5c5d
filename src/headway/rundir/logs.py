"""Follow a run's log: every line once and in order, from before the run starts to its end.

A rank's lines are in two places: at once in the spool on the machine that runs it, and a little later in the segments
in the run folder. Both hold the same lines in the same order, so a line count is a position in either.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from pathlib import Path

from headway.core.retry import Backoff
from headway.core.types import LogLine
from headway.rundir.layout import RunFolder, Segment, parse_log, rank_of, read_lines, segments

POLL_S, REMOTE_POLL_S = 0.2, 1.0  # poll interval of a spool on this machine, and of a remote folder
_FIRST_POLL_S = 0.05  # until there is a spool: it is about to appear if the run starts on this machine
Key = tuple[int, str]  # attempt, writer
_SPOOLED = re.compile(r"a(\d{4,})-([a-z]\d*)\.log")


def tail(
    folder: RunFolder,
    *,
    spool: Path | None,
    ended: Callable[[], bool] | None,
    rank: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[LogLine]:
    """Yield all lines so far; then, if `ended` is given (whether the run has ended), new lines until the end."""
    follower, backoff = _LogFollower(folder, spool), Backoff(_FIRST_POLL_S, REMOTE_POLL_S)
    while True:
        last = ended is None or ended()  # checked before reading: lines printed before the end can then be read
        follower.discover()
        yield from follower.new_lines(rank, last)
        if last:
            return
        sleep(POLL_S if follower.spooled else backoff.next_s())


class _LogFollower:
    """The log streams of a run: one per rank and attempt."""

    def __init__(self, folder: RunFolder, spool: Path | None) -> None:
        self._folder, self._spool = folder, spool
        self._streams: dict[Key, _Stream] = {}
        self._listed = False
        self.spooled: set[Key] = set()

    def discover(self) -> None:
        lost = self._find_spools()
        # A live spool is complete; listing a bucket five times a second would not be free.
        if lost or not self.spooled or not self._listed:
            self._find_segments()
            self._listed = True

    def new_lines(self, rank: int | None, last: bool) -> Iterator[LogLine]:
        for attempt in sorted({attempt for attempt, _ in self._streams}):
            chosen = [
                stream.new_lines(last)
                for (number, writer), stream in sorted(self._streams.items(), key=lambda item: item[0])
                if number == attempt and rank in (None, rank_of(writer))
            ]
            yield from merge(*chosen, key=lambda line: line.time)

    def _find_spools(self) -> set[Key]:
        """Scan the spool folder; return the streams whose file has disappeared since the last scan."""
        before, self.spooled = self.spooled, set()
        for path in sorted(self._spool.glob("*.log")) if self._spool is not None else []:
            match = _SPOOLED.fullmatch(path.name)
            if match:
                key = int(match[1]), match[2]
                self.spooled.add(key)
                self._stream(key).spool = path
        for key in before - self.spooled:
            self._stream(key).spool = None
        return before - self.spooled

    def _find_segments(self) -> None:
        groups: dict[Key, list[Segment]] = {}
        for segment in segments(self._folder.store, "logs"):
            groups.setdefault((segment.attempt, segment.writer), []).append(segment)
        for key, parts in groups.items():
            self._stream(key).parts = parts

    def _stream(self, key: Key) -> _Stream:
        return self._streams.setdefault(key, _Stream(self._folder, rank_of(key[1])))


@dataclass
class _Stream:
    """One rank's lines in one attempt, and the read position."""

    folder: RunFolder
    rank: int
    spool: Path | None = None
    parts: list[Segment] = field(default_factory=list)
    lines_yielded: int = 0  # lines yielded, from either place
    offset: int = 0  # bytes of the spool read …
    spool_lines: int = 0  # … and the lines in them
    segments_read: int = 0  # segments read to their end …
    segment_lines: int = 0  # … and the lines in them

    def new_lines(self, last: bool) -> Iterator[LogLine]:
        source = self._from_spool(last) if self.spool is not None else self._from_segments()
        for line in source:
            yield parse_log(self.rank, line)

    def _from_spool(self, last: bool) -> Iterator[str]:
        assert self.spool is not None
        try:
            file = self.spool.open("rb")
        except OSError:  # removed since it was listed: the segments have everything
            yield from self._from_segments()
            return
        with file:
            file.seek(self.offset)
            for raw in file:
                if not raw.endswith(b"\n") and not last:
                    return  # an incomplete line: the rest is still being written
                self.offset += len(raw)
                self.spool_lines += 1
                if self.spool_lines > self.lines_yielded:  # else it has already been yielded from the segments
                    self.lines_yielded = self.spool_lines
                    yield raw.decode("utf-8", "replace").rstrip("\n")

    def _from_segments(self) -> Iterator[str]:
        for segment in self.parts[self.segments_read :]:
            texts = list(read_lines(self.folder.store, segment))
            skipped = max(0, self.lines_yielded - self.segment_lines)
            self.segments_read += 1
            self.segment_lines += len(texts)
            for text in texts[skipped:]:
                self.lines_yielded += 1
                yield text
