"""Validate a job's data sources from their manifests alone, before anything starts or costs money.

Imports nothing heavy, so that a plan can be checked on a machine that never trains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headway.core.errors import BadInput, Problem, StoreError
from headway.data.dataset.manifest import Manifest, read_manifest
from headway.spec.model import Data, Source

_BUILT_IN = "builtin:"


def check_data(data: Data, *, task: str | None = None) -> list[Problem]:
    """Return every problem of every source.

    `task` is the task the recipe trains (captions, classes, grades, translation).
    """
    found: list[Problem] = []
    for split in ("train", "val", "test"):
        sources: Sequence[Source] = getattr(data, split)
        for number, source in enumerate(sources):
            if not source.source.startswith(_BUILT_IN):
                found += _problems(source, split, f"data.{split}[{number}]", task)
        weights = [source.weight for source in sources]
        if weights and not any(weight > 0 for weight in weights):
            found.append(Problem(what="no source has a weight above 0", where=f"data.{split}", fix="give one a weight"))
    return found


def _problems(source: Source, split: str, where: str, task: str | None) -> Iterator[Problem]:
    if source.weight < 0:
        yield Problem(what=f"the weight is {source.weight}", where=where, fix="choose 0 or more")
    if source.limit is not None and source.limit < 1:
        yield Problem(what=f"a limit of {source.limit} leaves no row", where=where, fix="choose 1 or more")
    try:
        manifest = read_manifest(source.source)
    except (BadInput, StoreError) as error:
        yield Problem(what=error.problem.what, where=where, fix=error.problem.fix)
        return
    chosen = source.split or split
    if not manifest.splits.get(chosen):
        known = ", ".join(name for name, shards in manifest.splits.items() if shards)
        yield Problem(what=f"{source.source} has no rows in {chosen!r}", where=where, fix=f"split: one of {known}")
    if task is not None and manifest.task != task:
        what = f"{source.source} holds {manifest.task}, and this recipe learns {task}"
        yield Problem(what=what, where=where, fix="name data of that kind")
    for name, value in source.where.items():
        yield from _filter_problems(manifest, name, value, where)


def _filter_problems(manifest: Manifest, name: str, value: object, where: str) -> Iterator[Problem]:
    usable = {column.name: column for column in manifest.columns if column.kind in ("text", "integer")}
    if name not in usable:
        yield Problem(what=f"rows cannot be chosen by {name!r}", where=where, fix=f"one of {', '.join(usable)}")
        return
    for wanted in value if isinstance(value, list | tuple) else (value,):
        number = isinstance(wanted, int) and not isinstance(wanted, bool)
        if usable[name].kind == "integer" and not number and str(wanted) not in manifest.classes:
            known = ", ".join(manifest.classes[:12])
            fix = f"one of {known}" if known else "a number"
            yield Problem(what=f"there is no {name} {wanted!r}", where=where, fix=fix)
