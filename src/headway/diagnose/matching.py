"""The table of known failures: find the rule that matches a line of output, and fill in its cause and fix."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from importlib import import_module
from typing import Any

from headway.core.plan import UNKNOWN, describe_next_start

HERE = "python"  # the fact that the run uses this machine's own Python: its interpreter
_PACKAGES = {  # modules whose package has another name
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "git": "GitPython",
    "google": "google-cloud-storage",
    "IPython": "ipython",
    "Levenshtein": "levenshtein",
    "PIL": "pillow",
    "pkg_resources": "setuptools",
    "pytorch_lightning": "pytorch-lightning",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "tensorboardX": "tensorboardX",
    "yaml": "pyyaml",
}
MAX_EVIDENCE = 500  # characters of evidence shown
MAX_LINE = 1500  # characters matched per line: some patterns take quadratic time
_RULE_MODULES = ("cloud", "cluster", "memory", "devices", "network", "data", "code", "end")  # most reliable first


class Retry(str, Enum):
    """Whether a failed attempt is worth another one."""

    RETRY = "retry"  # another machine, network or moment may do
    SMALLER = "retry smaller"  # memory ran out: with smaller micro-batches
    WAIT = "wait and retry"  # something is used up or overloaded for a while
    ONCE = "retry once"  # the cause may be the code or not: once, and never twice at the same line
    NEVER = "do not retry"  # the same code fails again


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureRule:
    """A known failure. `{names}` in cause and fix are groups of the pattern, or facts about the run."""

    name: str
    pattern: str  # matched within one line, ignoring case
    cause: str
    fix: str
    fix_here: str = ""  # instead of `fix`, for a run in this machine's own Python
    in_code: bool = False  # the remedy is to edit the line that raised it
    retry: Retry = Retry.NEVER


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleMatch:
    name: str
    cause: str
    evidence: str
    fix: str
    in_code: bool = False
    retry: Retry = Retry.NEVER


class _Facts(dict[str, str]):
    """Facts about the run. An unknown one is its name in capitals, for the reader to fill in."""

    def __missing__(self, key: str) -> str:
        return key.upper()


@lru_cache(maxsize=1)
def failure_rules() -> tuple[FailureRule, ...]:
    """Return all failure rules, in the order in which they are tried."""
    found: list[FailureRule] = []
    for module in _RULE_MODULES:
        found += import_module(f"headway.diagnose.rules.{module}").RULES
    return tuple(found)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def user_rules(job: Mapping[str, Any]) -> tuple[FailureRule, ...]:
    """Return the rules that a job file gives under `explain`."""
    return tuple(
        FailureRule(
            name=str(each.get("name") or f"explain-{number}"),
            pattern=str(each["match"]),
            cause=str(each["cause"]),
            fix=str(each.get("fix") or ""),
            retry=_USER_CLASSES[str(each.get("retry") or "once")],
        )
        for number, each in enumerate(job.get("explain") or (), 1)
    )


_USER_CLASSES = {"retry": Retry.RETRY, "wait": Retry.WAIT, "once": Retry.ONCE, "never": Retry.NEVER}


def match_rules(
    lines: Sequence[str], facts: Mapping[str, str] | None = None, *, first: Sequence[FailureRule] = ()
) -> RuleMatch | None:
    """Return the diagnosis of the first rule that matches any line; its evidence is the last such line.

    `first` are rules of the job's own, tried before the others.
    """
    lines = [line[:MAX_LINE] for line in lines]
    for rule in (*first, *failure_rules()):
        pattern = _compiled(rule.pattern)
        for line in reversed(lines):
            match = pattern.search(line)
            if match:
                groups = {key: value for key, value in match.groupdict().items() if value is not None}
                return _fill_rule(rule, line, {**(facts or {}), **groups})
    return None


def _fill_rule(rule: FailureRule, line: str, values: Mapping[str, str]) -> RuleMatch:
    facts = _Facts({"again": describe_next_start(UNKNOWN), **values})
    if "module" in values:
        facts["package"] = package_of(values["module"])
    fix = rule.fix_here if values.get(HERE) and rule.fix_here else rule.fix
    return RuleMatch(
        name=rule.name,
        cause=_fill_names(rule.cause, facts),
        evidence=line.strip()[:MAX_EVIDENCE],
        fix=_fill_names(fix, facts),
        in_code=rule.in_code,
        retry=rule.retry,
    )


def _fill_names(text: str, facts: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda named: facts[named[1]], text)


def package_of(module: str) -> str:
    """Return the name to install a module by: `cv2` is in opencv-python."""
    top = module.partition(".")[0]
    return _PACKAGES.get(top, top)


def last_lines(lines: Iterable[str], count: int = 12) -> list[str]:
    """Return the last non-empty lines, for a failure that no rule matches."""
    return [line for line in lines if line.strip()][-count:]
