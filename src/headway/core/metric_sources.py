"""The entries of the job file's `metrics`: names of sources that Headway reads, and patterns of the user's."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

FILE_SOURCES: Final = ("tensorboard", "wandb", "mlflow", "lightning")  # log files below the working folder
OUTPUT_SOURCES: Final = ("tqdm", "transformers", "keras", "lightning", "lines")  # what the program prints
METRIC_SOURCES: Final = tuple(dict.fromkeys((*FILE_SOURCES, *OUTPUT_SOURCES)))
MAX_PATTERN: Final = 500
_EXAMPLE = "name each group after its metric: 'loss[=: ]+(?P<loss>[-+0-9.e]+)'; (?:…) groups without keeping"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricSources:
    """The chosen sources, by where they are read."""

    files: frozenset[str]
    output: frozenset[str]
    patterns: tuple[str, ...] = ()


def is_name(entry: str) -> bool:
    """Return whether an entry is meant as the name of a source rather than as a pattern."""
    return _NAME.fullmatch(entry) is not None


def metric_source_problem(entry: str) -> tuple[str, str] | None:
    """Return what is wrong with an entry and what to write instead, or None."""
    if is_name(entry):
        return None if entry in METRIC_SOURCES else _unknown_name(entry)
    try:
        pattern = re.compile(entry)
    except (re.error, RecursionError, OverflowError) as error:
        at = getattr(error, "pos", None)
        place = "" if at is None else f" at character {at + 1}"
        return f"{entry[:60]!r} is not a regular expression: {getattr(error, 'msg', error)}{place}", _EXAMPLE
    if not pattern.groupindex or pattern.groups > len(pattern.groupindex):
        return f"{entry[:60]!r} has a group without a name, or none at all", _EXAMPLE
    if len(entry) > MAX_PATTERN:
        return f"a pattern has at most {MAX_PATTERN} characters, this one {len(entry)}", "write a shorter one"
    return None


def _unknown_name(entry: str) -> tuple[str, str]:
    from difflib import get_close_matches  # only for a mistake: slow to import

    near = get_close_matches(entry.lower(), METRIC_SOURCES, n=1)
    known = f"write one of {', '.join(METRIC_SOURCES)}, or a pattern with named groups: '(?P<loss>[0-9.]+)'"
    return f"unknown source of metrics {entry[:60]!r}", f"did you mean {near[0]}?" if near else known


def chosen_sources(entries: Iterable[str] | None) -> MetricSources | None:
    """Return the sources to read: all for None; None for an empty list, which switches reading off."""
    if entries is None:
        return MetricSources(files=frozenset(FILE_SOURCES), output=frozenset(OUTPUT_SOURCES))
    entries = tuple(entries)
    names = {entry for entry in entries if is_name(entry)}
    if not entries:
        return None
    return MetricSources(
        files=frozenset(names.intersection(FILE_SOURCES)),
        output=frozenset(names.intersection(OUTPUT_SOURCES)),
        patterns=tuple(entry for entry in entries if not is_name(entry)),
    )
