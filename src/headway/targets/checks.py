"""Checks that several targets share. Offline: they read the job alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from headway.core.errors import Problem, TargetError
from headway.packaging import dependencies
from headway.spec.loading import dump
from headway.storage.secrets import parse

if TYPE_CHECKING:
    from headway.core.types import Handle
    from headway.spec import Job

_CLOUD_RESOURCES = ("machine", "disk", "spot")


def unused_resource_notes(job: Job, decided_by: str = "", *, more: Sequence[str] = ()) -> Iterator[str]:
    """Yield a note if the job asks for resources that only a cloud can choose. `decided_by` says what does so here;
    `more` are resources that are not limited here either."""
    unused = [f"resources.{name}" for name in (*_CLOUD_RESOURCES, *more) if getattr(job.resources, name)]
    if unused:
        yield f"ignored on this target: {', '.join(unused)}" + (f" ({decided_by})" if decided_by else "")


def unused_image_notes(job: Job, instead: str) -> Iterator[str]:
    """Yield a note if the job names an image on a target that runs none. `instead` says what the program runs in."""
    if job.image.uri or job.image.base or job.image.dockerfile:
        yield f"ignored on this target: image ({instead})"


def image_problems(job: Job) -> Iterator[Problem]:
    """Yield the problems of a job's image, on a target that runs one and installs nothing into a foreign one."""
    from headway.packaging import own_dockerfile, reference

    yield from reference.problems(dump(job)["image"], job.name)
    yield from own_dockerfile.problems(job)
    if not (job.image.uri or job.image.dockerfile):
        yield from dependencies.problems(job)
    elif job.setup:
        image = job.image.uri or job.image.dockerfile
        fix = "RUN lines in its Dockerfile; or image.base instead of image.uri, which setup adds to; or --set setup=[]"
        yield Problem(what=f"setup is not run in {image}, which is used as it is", where="setup", fix=fix)


def interpreter_problems(job: Job, *, sees_local_paths: bool = False) -> Iterator[Problem]:
    """Yield the problem of a `python` inside the project's folder, whose environments are never sent."""
    if job.python is None:
        return
    path, root = PurePosixPath(job.python), PurePosixPath(os.path.abspath(job.root))
    below_root = path.is_relative_to(root) and not sees_local_paths
    if ("/" in job.python and not path.is_absolute()) or below_root:
        what = f"{job.python} is in the project's folder on this machine, and environments are not sent"
        fix = "name the interpreter by its path there, or --set python=null, which installs the requirements there"
        yield Problem(what=what, where="python", fix=fix)


def dependency_notes(job: Job, not_installed: str = "") -> Iterator[str]:
    """Yield where the dependencies of a job's program come from. `not_installed` says why nothing is installed."""
    source = job.requirements or dependencies.find_file(job)
    if source and job.python:
        yield f"dependencies: {source} is not installed: {job.python} runs the program, with its own packages"
    elif source and not_installed:
        yield f"dependencies: {source} is not installed: {not_installed}"
    elif source:
        yield f"dependencies: installed from {dependencies.describe(job)}"


def cluster_secret_problems(job: Job, outside: str) -> Iterator[Problem]:
    """Yield the secrets that only a Kubernetes cluster can read. `outside` names what runs outside of one."""
    for name, secret in job.secrets.items():
        if parse(secret.ref).kind == "k8s":
            what = f"{secret.ref} is in a Kubernetes cluster, and {outside} outside of it"
            yield Problem(what=what, where=f"secrets.{name}", fix=f"secrets: {{{name}: env:{name}}}")


def mount_problems(job: Job, what: str, fix: str) -> Iterator[Problem]:
    """Yield the mounts of a job whose processes see a machine's own paths. `{source}` and `{at}` are filled in."""
    for mount in job.mounts:
        if mount.path != mount.at:
            source = mount.nfs or mount.pvc or mount.path
            yield Problem(what=what.format(source=source, at=mount.at), where="mounts", fix=fix)


def read_only_notes(job: Job) -> Iterator[str]:
    """Yield a note if a mount is to be read-only on a target whose processes see a machine's own paths."""
    paths = [str(mount.path) for mount in job.mounts if mount.read_only]
    if paths:
        why = "the program runs without a container, and can write wherever its user can"
        yield f"ignored on this target: read_only of {', '.join(paths)} ({why})"


def require_same_host(handle: Handle, other_host: str, what: str) -> None:
    """Raise TargetError if the run is on another machine, whose processes or containers (`what`) cannot be seen."""
    if other_host:
        raise TargetError(
            f"{handle.run} runs on {other_host}, and its {what} cannot be seen from here",
            fix=f"on {other_host}: headway down {handle.url}",
        )


# What `Target.exec_command` of several targets answers


def no_process(handle: Handle, what: str) -> TargetError:
    """Return the error for a run of which no container, pod or machine is live."""
    fix = f"headway pull {handle.run}, then `headway.open_run` in a notebook of your own"
    return TargetError(f"no {what} of {handle.run} is running", fix=fix)


def install_in_image(_: str) -> str:
    """Return what to do about a missing JupyterLab where the interpreter is in an image."""
    return "add jupyterlab to the job's requirements, or to its image, and run it again"
