"""Match lines that a run or a tool printed against known failures: cause, evidence and fix. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module

from headway.core.plan import UNKNOWN, again

LONGEST_LINE = 500  # characters of evidence shown
LONGEST_READ = 1500  # characters matched per line: some patterns take quadratic time
_MODULES = ("cloud", "cluster", "memory", "devices", "network", "data", "code", "end")  # most reliable first


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureRule:
    """A known failure. `{names}` in cause and fix are groups of the pattern, or facts about the run."""

    name: str
    pattern: str  # matched within one line, ignoring case
    cause: str
    fix: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    name: str
    cause: str
    evidence: str
    fix: str


class _Facts(dict[str, str]):
    """Facts about the run. An unknown one is its name in capitals, for the reader to fill in."""

    def __missing__(self, key: str) -> str:
        return key.upper()


@lru_cache(maxsize=1)
def catalogue() -> tuple[FailureRule, ...]:
    """Return all failure rules, in the order in which they are tried."""
    found: list[FailureRule] = []
    for module in _MODULES:
        found += import_module(f"headway.diagnose.rules.{module}").KNOWN
    return tuple(found)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def diagnose(lines: Sequence[str], facts: Mapping[str, str] | None = None) -> Diagnosis | None:
    """Return the diagnosis of the first rule that matches any line; its evidence is the last such line."""
    lines = [line[:LONGEST_READ] for line in lines]
    for known in catalogue():
        pattern = _compiled(known.pattern)
        for line in reversed(lines):
            found = pattern.search(line)
            if found:
                groups = {key: value for key, value in found.groupdict().items() if value is not None}
                return _filled(known, line, {**(facts or {}), **groups})
    return None


def _filled(known: FailureRule, line: str, values: Mapping[str, str]) -> Diagnosis:
    words = _Facts({"again": again(UNKNOWN), **values})
    return Diagnosis(
        name=known.name,
        cause=known.cause.format_map(words),
        evidence=line.strip()[:LONGEST_LINE],
        fix=known.fix.format_map(words),
    )


def last_words(lines: Iterable[str], count: int = 12) -> list[str]:
    """Return the last non-empty lines, for a failure that no rule matches."""
    return [line for line in lines if line.strip()][-count:]
