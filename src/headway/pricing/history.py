"""History of past runs and rehearsals, from which durations are estimated. Stored beside the run index; can be lost.

One JSON object per line, appended: {"url", "what", "work", "device", "nodes", "length", "examples", "seconds", …}.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headway.core.paths import home
from headway.spec.renamed import current_config

_REMEMBERED = 2000  # newest lines that are read back
RUN, REHEARSAL = "run", "rehearsal"
# Settings for how long to train, not what a step does: from a run of 3 epochs, one of 30 can be estimated.
LENGTHS = ("epochs", "max_epochs", "phase1_epochs", "phase2_epochs")


@dataclass(frozen=True, kw_only=True, slots=True)
class PastRun:
    """Duration of one past training on a device, and the size of its output."""

    url: str  # of the run; a later line with the same URL replaces this one
    what: str  # the recipe's name, or the script's
    work: str  # digest of everything that a step depends on
    device: str  # per node: "T4:1", "cpu:2"
    nodes: int
    length: float  # epochs
    seconds: float
    examples: float | None = None  # over the whole training
    checkpoint_bytes: int | None = None
    checkpoint_s: float | None = None
    export_bytes: int | None = None
    export_s: float | None = None
    basis: str = RUN


def path() -> Path:
    return home() / "experience.jsonl"


def learn(new: PastRun) -> None:
    """Append a record. Failing to write it costs an estimate, never a run."""
    line = json.dumps(asdict(new), sort_keys=True) + "\n"
    try:
        path().parent.mkdir(parents=True, exist_ok=True)
        # One append of less than a page: lines of concurrent processes do not mix.
        with open(path(), "a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        import logging

        logging.getLogger("headway").warning("what this run took could not be remembered: %s", error)


def remembered() -> list[PastRun]:
    """Return the records, oldest first, one per run. Unreadable lines are skipped: they are only hints."""
    try:
        with open(path(), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - (1 << 20)))
            lines = file.read().decode("utf-8", "replace").splitlines()[-_REMEMBERED:]
    except OSError:
        return []
    found: dict[str, PastRun] = {}
    for line in lines:
        try:
            one = PastRun(**json.loads(line))
            if one.seconds > 0 and one.length > 0:
                found.pop(one.url, None)
                found[one.url] = one
        except (ValueError, TypeError):
            continue
    return list(found.values())


def what_of(job: Mapping[str, Any]) -> str:
    return str(job["recipe"]) if job.get("recipe") else f"script:{job.get('script')}"


def work_of(job: Mapping[str, Any]) -> str:
    """Digest what a step does: recipe or script, its settings except for the length, its data."""
    config = {key: value for key, value in current_config(job).items() if key not in LENGTHS}
    known = {"what": what_of(job), "args": list(job.get("args") or ()), "config": config, "data": job.get("data")}
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:16]


def length_of(job: Mapping[str, Any]) -> float:
    """Return the epochs, from the phases or the settings; 1 for a script that does not say."""
    phases = job.get("phases") or ()
    if phases:
        return float(sum(phase["epochs"] for phase in phases))
    config = dict(job.get("config") or {})
    told = [config[key] for key in LENGTHS if isinstance(config.get(key), int | float)]
    return float(sum(told)) or 1.0
