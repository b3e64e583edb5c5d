"""Check a job for the docker target, with a fix per problem. Starts nothing.

Only `daemon_problems` sends a request to the daemon, when a run starts and for `plan --online` and `doctor`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from headway.core.errors import Problem
from headway.packaging import image_contents
from headway.packaging.engine import Engine, EngineError, engine_error
from headway.packaging.supervisor_runtime import runtime_name
from headway.spec.loading import dump
from headway.targets.checks import cluster_secret_problems, image_problems, interpreter_problems
from headway.targets.docker.options import Options
from headway.targets.docker.render import NVIDIA

if TYPE_CHECKING:
    from headway.spec import Job

_GPU_RUNTIMES = ("nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-ctk")


def problems(job: Job, options: Options) -> Iterator[Problem]:
    """Yield what would stop the job on any machine. Needs no daemon."""
    yield from image_problems(job)
    yield from interpreter_problems(job)
    yield from _mount_problems(job)
    yield from cluster_secret_problems(job, "containers here are")
    yield from _node_problems(job, options)


def _mount_problems(job: Job) -> Iterator[Problem]:
    for mount in job.mounts:
        if mount.pvc:
            what = f"{mount.pvc} is a volume of a Kubernetes cluster"
            yield Problem(what=what, where="mounts", fix=f"mounts: [{{path: /a/folder, at: {mount.at}}}]")
        elif mount.path and not Path(mount.path).exists():
            yield Problem(
                what=f"there is no {mount.path} on this machine", where="mounts", fix=f"mkdir -p {mount.path}"
            )


def _node_problems(job: Job, options: Options) -> Iterator[Problem]:
    if job.resources.nodes > 1 and options.network:
        what = (
            f"{job.resources.nodes} nodes need a private network to find each other, and {options.network} is not one"
        )
        yield Problem(what=what, where="targets", fix="remove `network`, or nodes: 1 with more processes")


def daemon_problems(job: Job, options: Options, engine: Engine) -> Iterator[Problem]:
    """Check that the daemon exists, is reachable, permits access, is on this machine and can do what the job needs."""
    remote = os.environ.get("DOCKER_HOST", "")
    if remote and not remote.startswith("unix:"):
        what = f"DOCKER_HOST={remote} is another machine, which has neither this one's folders nor its memory"
        yield Problem(what=what, where="DOCKER_HOST", fix="unset DOCKER_HOST; or use an ssh target for that machine")
        return
    try:
        info = _daemon_info(options, engine)
    except EngineError as error:
        yield error.problem
        return
    if options.user == "me" and os.getuid() and "name=rootless" in (info.get("SecurityOptions") or ()):
        what = "this Docker is rootless: files that a container writes as your user would belong to another user"
        yield Problem(what=what, where="targets", fix="write `user: root` in the target's entry: that is your user")
    if job.resources.accelerator and NVIDIA.exists() and not _can_use_gpus(info):
        what = "this machine has a GPU, but containers cannot use it: the NVIDIA container toolkit is missing"
        fix = "sudo apt-get install nvidia-container-toolkit && sudo nvidia-ctk runtime configure"
        yield Problem(what=what, where="resources.accelerator", fix=f"{fix} && sudo systemctl restart docker")
    runtime = runtime_name(dump(job), options.platform) if job.image.uri else ""
    if runtime:
        yield from image_contents.problems(dump(job), engine, options.command, runtime, python=options.python)


def _daemon_info(options: Options, engine: Engine) -> dict[str, Any]:
    argv = [options.command, "info", "--format", "{{json .}}"]
    info: dict[str, Any] = json.loads(engine(argv))
    if info.get("ServerErrors"):  # older clients report errors here and still exit with 0
        raise engine_error(argv, "\n".join(map(str, info["ServerErrors"])))
    return info


def _can_use_gpus(info: dict[str, Any]) -> bool:
    return "nvidia" in (info.get("Runtimes") or {}) or any(which(name) for name in _GPU_RUNTIMES)
