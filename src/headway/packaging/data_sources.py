"""The data that a job names: what it is, and whether the recipe can read it as the job says. Reads manifests alone.

What lies in a bucket is left alone: a plan needs no credentials. It is checked when the run starts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from headway._version import __version__
from headway.core.errors import BadInput, Problem
from headway.core.plan import UNRESOLVED
from headway.spec import Job

# What each recipe learns from; its name for prepared data of that kind.
_LEARNS: Final = {
    "captioning": "captions",
    "classification": "classes",
    "grading": "grades",
    "translation": "translation",
}
_BUILT_IN: Final = "builtin:"


def data_problems(job: Job) -> list[Problem]:
    """Splits, weights, limits and filters that the prepared data on this machine does not have."""
    if job.recipe not in _LEARNS:
        return []
    from headway.data.dataset.open import check_data

    here = {
        name: tuple(source for source in getattr(job.data, name) if _prepared(source.source))
        for name in ("train", "val", "test")
    }
    return check_data(replace(job.data, **here), task=_LEARNS[job.recipe])


def fingerprint(source: str) -> str:
    """What the data is, where that can be known without reading it; a remote one is resolved at launch."""
    if "://" in source:
        return UNRESOLVED
    if source.startswith(_BUILT_IN):
        return f"{source}@{__version__}"
    if _prepared(source):
        from headway.data.dataset.manifest import fingerprint as of_manifest

        return of_manifest(source)
    if Path(source).exists():
        return UNRESOLVED
    raise BadInput(f"no such data: {source}", fix="headway data prepare, or mend the path in the job file")


def _prepared(source: str) -> bool:
    return "://" not in source and not source.startswith(_BUILT_IN) and (Path(source) / "manifest.json").is_file()
