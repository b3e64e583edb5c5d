"""Classify how a rank failed: whether another attempt is worth it. The restart policy follows the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.core.python_errors import PythonError, last_error
from headway.diagnose.matching import FailureRule, Retry, RuleMatch, match_rules

STALLED = "stalled"  # the exception of a run that made no progress: stalled at train.py:6
_NO_COMMAND = (126, 127)  # exit codes of a command that cannot be executed or is not found
_LAST_LINES = 12  # of a program that printed no traceback: what it said before is rarely the cause
_TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """The class of a failure. Without a `name` no rule knows it."""

    retry: Retry
    why: str  # the cause in a few words
    name: str = ""
    evidence: str = ""
    fix: str = ""


def classify(
    lines: Sequence[str], *, code: int = 1, signal: str = "", exception: str = "", rules: Sequence[FailureRule] = ()
) -> Fault:
    """Return the class of a rank's failure.

    `lines` are the last it printed, `exception` the exception and its line in the project, `rules` the job's own rules.
    Only the end of the output counts: the exception's own message, or else the last few lines.
    """
    if exception.startswith(STALLED):
        return Fault(retry=Retry.ONCE, why=exception, name="stalled")
    error = last_error(lines)
    ending = _message_lines(lines) if error else list(lines)[-_LAST_LINES:]
    found = match_rules(ending, first=rules)
    if signal == "SIGKILL" and (found is None or found.retry is not Retry.SMALLER):
        return Fault(retry=Retry.RETRY, why="killed from outside")
    if signal and found is None:
        found = match_rules([f"rank was ended by {signal}"], first=rules)
    if found is not None and not _is_vague(found, error):
        return Fault(retry=found.retry, why=found.cause, name=found.name, evidence=found.evidence, fix=found.fix)
    return _class_of_exit(error, code, exception)


def _class_of_exit(error: PythonError | None, code: int, exception: str) -> Fault:
    """Return the class of a failure that no rule names."""
    if error is None and code in _NO_COMMAND:
        return Fault(retry=Retry.NEVER, why="the command cannot be executed")
    if error is None:
        return Fault(retry=Retry.ONCE, why="unknown failure")
    name = exception or error.kind
    if error.is_fatal:
        return Fault(retry=Retry.NEVER, why=f"{name}: the same code would fail again")
    if error.is_transient:
        return Fault(retry=Retry.RETRY, why=f"{name}, which a network, a disk or another machine may cause")
    return Fault(retry=Retry.ONCE, why=name)


def _is_vague(found: RuleMatch, error: PythonError | None) -> bool:
    """Whether the exception says more than the rule: one that a network or a disk may cause is worth a retry."""
    return found.retry is Retry.ONCE and error is not None and error.is_transient


def _message_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines after the frames of the last traceback: the exception and its message."""
    start = max((at for at, line in enumerate(lines) if _TRACEBACK in line), default=0)
    rest = [line for line in lines[start + 1 :] if line.strip()]
    return [line for line in rest if not line.startswith((" ", "\t"))] or rest
