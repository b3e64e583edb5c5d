"""Problems that would stop a job on a cluster, each with its fix, and notes for its plan.

Only `online` and `online_notes` query Slurm.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.command import CommandError
from headway.core.errors import Problem
from headway.packaging import dependencies
from headway.rundir.index import MAX_NAME_LENGTH
from headway.rundir.status import key_file_notes, local_dir, run_url
from headway.spec.loading import dump
from headway.spec.rules import processes
from headway.storage import local_path
from headway.targets.checks import (
    cluster_secret_problems,
    dependency_notes,
    interpreter_problems,
    mount_problems,
    read_only_notes,
    unused_image_notes,
    unused_resource_notes,
)
from headway.targets.slurm import sbatch
from headway.targets.slurm.client import CommandRunner, label
from headway.targets.slurm.options import Options

if TYPE_CHECKING:
    from headway.spec import Job

MAX_COMMENT = 1000  # Slurm's limit is 1024
MIN_TIME_S = 300.0  # shorter limits would get Slurm's warning signal at the start
_RESERVED_OPTIONS = ("--job-name", "-J", "--comment", "--output", "-o", "--error", "-e", "--open-mode", "--nodes", "-N",
                     "--ntasks", "-n", "--array", "-a", "--export", "--chdir", "-D", "--signal", "--requeue",
                     "--no-requeue", "--time", "-t", "--parsable", "--wrap", "--test-only", "--wait", "-W")  # fmt: skip
# Network file systems. Others may still be exported to the nodes, so this leads to a note, not a problem.
_SHARED_FILE_SYSTEMS = ("9p", "afs", "beegfs", "ceph", "cifs", "cvmfs", "fhgfs", "fuse", "glusterfs", "gpfs", "lustre",
                        "mmfs", "nfs", "ocfs2", "orangefs", "panfs", "pvfs2", "quobyte", "smb", "virtiofs",
                        "weka")  # fmt: skip


def problems(job: Job, options: Options) -> Iterator[Problem]:
    """Yield the problems that can be found on any machine."""
    yield from _option_problems(job, options)
    mount = "a Slurm job cannot mount {source} at {at}"
    yield from mount_problems(job, mount, fix="remove `mounts`, and use the path as it is on the nodes")
    yield from cluster_secret_problems(job, "Slurm's nodes are")
    yield from dependencies.problems(job)
    yield from interpreter_problems(job, sees_local_paths=True)


def online(job: Job, options: Options, run: CommandRunner) -> Iterator[Problem]:
    """Yield the problems that only the cluster can report. Submits nothing."""
    refused = _partition_problems(options, run)
    yield from refused if refused else _test_submission(job, options, run)


def online_notes(options: Options, run: CommandRunner) -> Iterator[str]:
    yield from _kill_wait_notes(options, run)


def notes(job: Job, ranks: int, options: Options) -> Iterator[str]:
    resources = job.resources
    yield from unused_resource_notes(job, "the partition decides")
    yield from unused_image_notes(job, "`python`, `setup` and `requirements` say what a node runs")
    yield from read_only_notes(job)
    yield from dependency_notes(job)
    if resources.cpus is None:
        yield f"requests {ranks} CPUs per node, one per rank; resources.cpus requests more"
    if job.max_wait is not None and (options.requeue or sbatch.time_s(_budget_s(job), options) is None):
        yield "max_wait has no effect: Slurm enforces it only with `requeue: false` and a budget or a `time`"
    yield from key_file_notes(job)
    yield from _shared_folder_notes(job)


def _option_problems(job: Job, options: Options) -> Iterator[Problem]:
    where = "targets"
    for word in options.args:
        name = word.partition("=")[0]
        if name in _RESERVED_OPTIONS or not word.startswith("-"):
            what = f"{word} is not for `args`: " + (
                "Headway sets it" if name in _RESERVED_OPTIONS else "it is not an option of sbatch"
            )
            yield Problem(
                what=what, where=where, fix="remove it from `args`; `time` and `requeue` have keys of their own"
            )
    if options.time is not None and options.time < MIN_TIME_S:
        what = f"time: {options.time:g}s is too short: Slurm's warning comes {sbatch.WARNING_S} s before it"
        yield Problem(what=what, where=where, fix="time: 5m or more, or leave it out")
    for name in ("partition", "account", "qos", "constraint", "gres"):
        value = getattr(options, name)
        if value is not None and (not value or any(sign.isspace() for sign in value)):
            yield Problem(what=f"{name}: {value!r} cannot be given to sbatch", where=where, fix=f"correct `{name}`")
    if len(label(run_url(job.outputs, "n" * MAX_NAME_LENGTH), "n" * MAX_NAME_LENGTH)) > MAX_COMMENT:
        what = "the path is too long to be a job's label in Slurm"
        yield Problem(what=what, where="outputs", fix="name a shorter folder under `outputs`")


def _partition_problems(options: Options, run: CommandRunner) -> list[Problem]:
    """Check that a cluster answers and has the partition."""
    try:
        run(["sbatch", "--version"])
        listed = run(["sinfo", "--noheader", "--format=%R"]).split()
    except CommandError as error:
        return [error.problem]
    if options.partition is None or set(options.partition.split(",")) <= set(listed):
        return []
    missing = sorted(set(options.partition.split(",")) - set(listed))[0]
    close = get_close_matches(missing, listed, n=1)
    known = ", ".join(dict.fromkeys(listed))
    fix = f"partition: {close[0]}" if close else f"partition: one of {known}"
    return [Problem(what=f"the cluster has no partition {missing!r}", where="targets", fix=fix)]


def _test_submission(job: Job, options: Options, run: CommandRunner) -> Iterator[Problem]:
    """Check the job's options with `sbatch --test-only`. Submits nothing."""
    arguments = sbatch.resources(dump(job), processes(job), options)
    arguments += sbatch.time_options(_budget_s(job), job.max_wait, options)
    try:
        run(["sbatch", "--test-only", *arguments, *options.args, "--wrap=true"])
    except CommandError as error:
        if "required node not available" not in error.output.lower():  # down or drained now: the job would wait
            fix = error.problem.fix or "correct `resources` or the target's entry; `sbatch --test-only` prints the same"
            yield Problem(what=error.problem.what, where="resources", fix=fix)


def _budget_s(job: Job) -> float | None:
    return None if job.budget.hours is None else job.budget.hours * 3600


def _shared_folder_notes(job: Job) -> Iterator[str]:
    folder = local_dir(run_url(job.outputs, "run"), sbatch.KIND)
    kind = _file_system(folder)
    if kind.startswith(_SHARED_FILE_SYSTEMS):
        return
    what = "outputs" if local_path(job.outputs) is not None else "HEADWAY_HOME"
    yield f"{what}: {folder.parent.parent} is on {kind or 'a disk'} of this machine, and every node must see it"


def _file_system(path: Path) -> str:
    """Return the type of the file system that contains the path, by its longest mount point."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return ""
    real = os.path.realpath(path)
    above = [
        (point, kind)
        for point, kind in mounts
        if os.path.commonpath([real, _unescape_mount(point)]) == _unescape_mount(point)
    ]
    return max(above, key=lambda mount: len(mount[0]))[1] if above else ""


def _unescape_mount(point: str) -> str:
    return point.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def _kill_wait_notes(options: Options, run: CommandRunner) -> Iterator[str]:
    try:
        shown = run(["scontrol", "show", "config"])
    except CommandError:
        return
    found = next((line for line in shown.splitlines() if line.startswith("KillWait")), "")
    seconds = "".join(sign for sign in found.partition("=")[2] if sign.isdigit())
    if seconds and float(seconds) < options.grace:
        yield f"grace: this cluster's KillWait is {seconds} s, less than {options.grace:g} s: write grace: {seconds}s"
