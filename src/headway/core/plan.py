"""The plan: a job resolved for one target, as plain values. The same inputs give the same bytes.

Also the three ways in which a run resumes; a plan records one of them as `resume`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from headway.core.errors import BadPlan, json_of
from headway.core.types import Request

SCHEMA = 1
RUN = "{RUN}"  # placeholder for the run's name until launch
UNRESOLVED = "unresolved"  # the fingerprint of remote data that has not been looked up yet


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """The code to send: an archive named by its content, and Headway's own wheel."""

    sha256: str
    files: int
    bytes: int
    biggest: tuple[tuple[str, int], ...]
    wheel: str
    wheel_sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of a run. Durations, never times of day, because clocks may jump. None means no limit."""

    budget_s: float | None
    max_wait_s: float | None
    grace_s: float
    second: str  # the target's own limit, which takes effect if the budget does not; in words


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    schema: int = SCHEMA
    headway: str
    job: Mapping[str, Any]  # the job file as understood, defaults filled in; secrets are references
    target: str
    kind: str
    options: Mapping[str, Any]
    code: Code
    data: Mapping[str, str]  # source -> fingerprint, or UNRESOLVED
    nodes: int
    processes: int  # ranks on each node
    limits: Limits
    environment: Mapping[str, str]  # versions and thread counts that exactness depends on
    price: Mapping[str, Any]  # usd_per_hour, spot_usd_per_hour, expected_usd, ceiling_usd, …: those that are known
    resume: str = ""  # EXACT, BY_SCRIPT or BEGINNING; empty in older plans, whose wheels refuse the key
    notes: tuple[str, ...] = ()  # what a reader of the plan should know before launching it
    requests: tuple[Request, ...] = field(default=())

    def to_json(self) -> str:
        plain = asdict(self)
        if not self.resume:  # an older plan keeps its bytes, and with them its hash
            del plain["resume"]
        return json.dumps(plain, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @property
    def resumes(self) -> str:
        """How the run resumes, also for older plans: a recipe is EXACT; UNKNOWN if only the script's code tells."""
        return self.resume or (EXACT if self.job.get("recipe") else UNKNOWN)

    @property
    def hash(self) -> str:
        """SHA-256 of what would be done. The price is left out: estimates change as more runs are recorded."""
        return hashlib.sha256(replace(self, price={}).to_json().encode()).hexdigest()

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "plan") -> Plan:
        """Parse what `to_json` wrote. Raises BadPlan, which says what is wrong, for anything else."""
        try:
            raw = json_of(text)
            if raw["schema"] != SCHEMA:
                raise BadPlan(
                    f"this plan has schema {raw['schema']}, this Headway reads {SCHEMA}",
                    where=where,
                    fix="headway plan --out plan.json",
                )
            code = raw.pop("code")
            code["biggest"] = tuple((str(name), int(size)) for name, size in code["biggest"])
            requests = tuple(Request(**request) for request in raw.pop("requests"))
            limits, notes = Limits(**raw.pop("limits")), tuple(raw.pop("notes"))
            return cls(code=Code(**code), limits=limits, notes=notes, requests=requests, **raw)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadPlan(
                f"not a plan: {type(error).__name__}: {error}",
                where=where,
                fix="headway plan --out plan.json",
            ) from None


# How a run resumes


EXACT: Final = "exact"  # a recipe, or a script that uses headway.start(): bit for bit, from the newest checkpoint
BY_SCRIPT: Final = "script"  # the sources load earlier state: files are restored, the rest is up to the script
BEGINNING: Final = "beginning"  # nothing in the sources loads earlier state
UNKNOWN: Final = ""  # the plan was made by an older version, which did not look

_PLAN: Final = {
    EXACT: "exact: goes on from the newest checkpoint",
    BY_SCRIPT: "by the script: its files are restored, and whether it goes on from them is the script's to decide",
    BEGINNING: "starts from the beginning: nothing in the script's sources loads what it has saved",
    UNKNOWN: "not known: the plan was made by a Headway that did not look",
}
_AGAIN: Final = {
    EXACT: "it goes on from its last checkpoint",
    BY_SCRIPT: "its files are restored, and whether it goes on from them is the script's to decide",
    BEGINNING: "it starts from the beginning",
    UNKNOWN: "whether it goes on from its last checkpoint is not known",
}


def in_plan(kind: str) -> str:
    """Return the line that describes this kind of resume in a plan and in `headway status`."""
    return _PLAN.get(kind, _PLAN[UNKNOWN])


def again(kind: str) -> str:
    """Return a clause that says what the next start does."""
    return _AGAIN.get(kind, _AGAIN[UNKNOWN])
