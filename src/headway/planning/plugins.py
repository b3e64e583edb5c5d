"""What a plan uses of other packages, and whether that reaches the machine that trains.

A target, a reader and a provider are used by this machine alone. A recipe and a tracker are imported by the ranks, a
store by the supervisor and the ranks: their package must be among the requirements that are installed there, or their
module below the job file's folder, whose files are sent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway.core.errors import Problem
from headway.plugins import RECIPES, RECORDED_FACTS, STORES, TARGETS, TRACKERS, plugin_of
from headway.plugins.registry import BrokenPlugin, Registry, is_path
from headway.spec import Job, dump
from headway.spec.constraints import scheme_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Used:
    """A plug-in of another package, or of the project, that the machine that trains imports."""

    registry: Registry[Any]
    name: str
    where: str  # the key of the job file

    @property
    def origin(self) -> str:
        return self.registry.distribution(self.name)

    def __str__(self) -> str:
        return f"the {self.registry.what} {self.name} ({self.origin})"


def record(job: Job, kind: str) -> dict[str, Any]:
    """Return the plan's record of what it uses of other packages; empty if nothing."""
    found: dict[str, Any] = {}
    if kind not in TARGETS.built_in:
        entry = TARGETS[kind]
        facts = {name: getattr(entry, name) for name in RECORDED_FACTS}
        found["target"] = {kind: {"from": _package(TARGETS, kind), **facts}}
    for used in used_where_it_trains(job):
        found.setdefault(used.registry.group, {})[used.name] = _package(used.registry, used.name)
    return found


def _package(registry: Registry[Any], name: str) -> str:
    return "the project" if is_path(name) else registry.distribution(name)


def used_where_it_trains(job: Job) -> list[Used]:
    """Return the plug-ins that the ranks or the supervisor import, without those that ship with Headway."""
    found = [Used(registry=RECIPES, name=job.recipe, where="recipe")] if job.recipe else []
    found += [Used(registry=TRACKERS, name=name, where="log_to") for name in job.log_to]
    schemes = {scheme_of(url): where for where, url in _urls(job)}
    schemes = {scheme: where for scheme, where in schemes.items() if scheme not in ("", "http", "https")}
    found += [Used(registry=STORES, name=scheme, where=where) for scheme, where in sorted(schemes.items())]
    return [used for used in found if used.name not in used.registry.built_in]


def _urls(job: Job) -> Iterator[tuple[str, str]]:
    for name in ("train", "val", "test"):
        yield from ((f"data.{name}", source.source) for source in getattr(job.data, name))
    yield from ((f"data.{name}", source) for name, source in job.named_data.items())
    yield from (("init_from", job.init_from or ""), ("export.to", job.export.to or ""), ("outputs", job.outputs))


def problems(job: Job, kind: str, options: Mapping[str, Any], image_platform: str | None) -> Iterator[Problem]:
    """Find plug-ins that the machine that trains could not import.

    `image_platform`: that of the image in which the target starts its supervisor, if it does.
    """
    yield from _broken_stores(job)
    if _trains_in_this_python(job, kind, options):
        return
    own_supervisor = image_platform is not None and _gets_own_interpreter(job)
    for used in used_where_it_trains(job):
        if own_supervisor and used.registry is STORES:
            what = f"{used} is not in the supervisor's own interpreter, which this image gets"
            yield Problem(what=what, where=used.where, fix="let Headway build the image (remove image), or a folder")
        elif is_path(used.name):
            if not _in_project(job, used.name):
                what = f"{used.name} is not below {Path(job.root).resolve()}, and only files below it are sent"
                yield Problem(what=what, where=used.where, fix="move the module there, or package it (docs/plugins.md)")
        elif not _chooses_environment(job, options) and _name(used.origin) not in _required(job):
            package, _, version = used.origin.partition(" ")
            yield Problem(
                what=f"{used} is not among the requirements, and would be missing where it trains",
                where=used.where,
                fix=f"echo {package}=={version} >> {job.requirements or 'requirements.txt'}"
                + ("" if job.requirements else ", and add  requirements: requirements.txt"),
            )


def _gets_own_interpreter(job: Job) -> bool:
    from headway.packaging.supervisor_runtime import is_ready_image

    return is_ready_image(dump(job))


def _broken_stores(job: Job) -> Iterator[Problem]:
    """Load the stores that the job names: this machine needs them, too."""
    for used in used_where_it_trains(job):
        if used.registry is STORES:
            try:
                STORES[used.name].load()
            except BrokenPlugin as error:
                yield replace(error.problem, where=used.where)


def notes(job: Job, kind: str, options: Mapping[str, Any]) -> Iterator[str]:
    """Say which packages the job uses, and how they reach the machine that trains."""
    if kind not in TARGETS.built_in:
        yield f"the {TARGETS.what} {kind} is from {_package(TARGETS, kind)}; only this machine needs it"
    here = _trains_in_this_python(job, kind, options)
    for used in used_where_it_trains(job):
        origin = _package(used.registry, used.name)
        if here:
            how = "installed here"
        elif is_path(used.name):
            how = "sent with the project's code"
        elif _name(used.origin) in _required(job):
            how = f"installed there by {job.requirements}"
        else:
            how = "it must be installed there already: the job brings its own image or interpreter"
        yield f"the {used.registry.what} {used.name} is from {origin}: {how}"


def _trains_in_this_python(job: Job, kind: str, options: Mapping[str, Any]) -> bool:
    return plugin_of(kind).own_python and not options.get("python")


def _chooses_environment(job: Job, options: Mapping[str, Any]) -> bool:
    """Whether the environment is one that Headway does not make, and so cannot look into."""
    return bool(options.get("python") or job.python or job.image.uri or job.image.dockerfile)


def _in_project(job: Job, path: str) -> bool:
    top = path.partition(":")[0].partition(".")[0]
    return os.path.isdir(Path(job.root, top)) or os.path.isfile(Path(job.root, f"{top}.py"))


def _required(job: Job) -> set[str]:
    """Return the names in the job's requirements, normalised."""
    if not job.requirements:
        return set()
    from headway.packaging.requirements import files_present

    root = Path(job.root).resolve()
    lines = [line for file in files_present(root, job.requirements) for line in (root / file).read_text().splitlines()]
    return {_name(found[0]) for line in lines if (found := re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line.strip()))}


def _name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", requirement.partition(" ")[0]).lower()
