"""What a run printed, for a page: its last lines without reading the rest, or all that contain a word."""

from __future__ import annotations

from heapq import merge
from typing import Any

from headway.runfolder import RunFolder, parse_log, rank_of
from headway.segments import Segment, lines, segments
from headway.targets.base import LogLine


def last_lines(folder: RunFolder, *, rank: int | None, query: str, last: int) -> list[dict[str, Any]]:
    """The newest lines that contain `query`, oldest first, over all ranks by time."""
    streams: dict[str, list[Segment]] = {}
    for segment in segments(folder.store, "logs"):
        if rank in (None, rank_of(segment.writer)):
            streams.setdefault(segment.writer, []).append(segment)
    ends = [_end(folder, parts, query.lower(), last) for parts in streams.values()]
    merged = list(merge(*ends, key=lambda line: line.time))[-last:] if last else []
    return [{"rank": line.rank, "time": line.time, "text": line.text} for line in merged]


def _end(folder: RunFolder, parts: list[Segment], query: str, last: int) -> list[LogLine]:
    """The last such lines of one stream, from its end backwards."""
    found: list[LogLine] = []
    for segment in reversed(parts):
        read = (parse_log(rank_of(segment.writer), line) for line in lines(folder.store, segment))
        found = [line for line in read if query in line.text.lower()] + found
        if len(found) >= last:
            break
    return found
