"""Run Slurm's commands, and read our jobs: those in the queue, and how a job that has left it ended.

A job's comment, `headway.run=…,headway.url=…`, identifies its run, so jobs can be found without local records.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, unquote

from headway.core import command
from headway.core.command import CommandError, ErrorRule, match_rule
from headway.core.types import EXPIRES_LABEL, OWNER_LABEL, OWNER_NAME_LABEL, RUN_LABEL
from headway.storage import is_same_folder

# Slurm's commands, the only access to a cluster. Failures raise CommandError, with a command that helps.


_LISTING_VARIABLES = ("SACCT_", "SCANCEL_", "SINFO_", "SQUEUE_")
COMMAND_TIMEOUT_S = 90.0  # commands retry while the controller is busy; after this it is stuck


class NotInstalled(CommandError):
    """The command is not on this machine."""


class Unreachable(CommandError):
    """No controller answers the command."""


class Unknown(CommandError):
    """Slurm does not know the job, or no longer."""


class AnotherCluster(Unreachable):
    """Slurm's commands here lead to another cluster than the run's."""


class CommandRunner(Protocol):
    """Runs one command and returns its output. Raises CommandError."""

    def __call__(
        self, argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> str: ...


def run(argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a command as a subprocess: the default CommandRunner."""
    env = without_listing_options(os.environ) if env is None else env
    late = f"`{argv[0]}` did not finish within {COMMAND_TIMEOUT_S:.0f} s"
    return command.run(
        argv,
        within_s=COMMAND_TIMEOUT_S,
        not_installed=not_installed,
        timed_out=lambda: Unreachable(late, fix="scontrol ping"),
        failed=command_error,
        cwd=cwd,
        env=env,
        errors="surrogateescape",  # Slurm's paths and comments are bytes: preserve what is not UTF-8
    )


def without_listing_options(shell: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the user's settings for listings, which could hide the jobs we look for."""
    hiding = (*_LISTING_VARIABLES, "SLURM_CLUSTERS")  # jobs are submitted without it, to the cluster of SLURM_CONF
    return {name: value for name, value in shell.items() if not name.startswith(hiding)}


def not_installed(name: str) -> NotInstalled:
    return NotInstalled(
        f"{name} is not here: Slurm's commands are on the login nodes of a cluster",
        fix="run headway on a login node; or, where they are in a module: module load slurm",
    )


def command_error(argv: Sequence[str], output: str) -> CommandError:
    """Turn a failed command's output into a CommandError with a fix."""
    known = match_rule(_ERROR_RULES, output)
    if known is not None:
        return known
    lines = [re.sub(r"^\w+: (?:error: )?", "", line.strip()) for line in output.splitlines() if line.strip()]
    return CommandError(f"{argv[0]}: {lines[-1] if lines else 'it gave no reason'}"[:400], output=output)


_SINFO = "sinfo --summarize"
# The first match wins.
_ERROR_RULES: tuple[ErrorRule[CommandError], ...] = (
    (
        r"unable to contact slurm controller|connection refused|socket timed out|connect failure|zero bytes were",
        Unreachable,
        "cannot contact the Slurm controller",
        "try again when `scontrol ping` succeeds",
    ),
    (
        r"unable to process configuration|cannot stat file|no such slurm\.conf|could not establish a configuration",
        Unreachable,
        "Slurm's commands are here, and no cluster is configured",
        "run headway on a login node; or export SLURM_CONF=/path/to/slurm.conf",
    ),
    (
        r"munge|authentication (?:credential|failed)|protocol authentication",
        Unreachable,
        "Slurm authentication failed: MUNGE is not running on this machine",
        "munge -n | unmunge, and ask the cluster's administrators",
    ),
    (r"invalid job id|job/step already completing or completed", Unknown, "Slurm does not know that job", ""),
    (
        r"invalid partition",
        CommandError,
        "the cluster has no such partition",
        f"{_SINFO}, and one of them as `partition` in the target's entry",
    ),
    (
        r"invalid account|account/partition combination",
        CommandError,
        "Slurm does not let you submit under that account in that partition",
        "sacctmgr show associations user=$USER, and one of them as `account` in the target's entry",
    ),
    (
        r"invalid qos",
        CommandError,
        "Slurm does not let you use that quality of service",
        "sacctmgr show associations user=$USER format=account,qos, and one of them as `qos` in the target's entry",
    ),
    (
        r"invalid feature|invalid constraint",
        CommandError,
        "no node has the features that `constraint` names",
        "sinfo --format='%N %f'",
    ),
    (
        r"requested node configuration is not available|invalid generic resource",
        CommandError,
        "no node of that partition has what the job asks for",
        "sinfo --format='%P %D nodes: %c CPUs, %m MB, %G', then fix `resources`, or `gres` in the target's entry",
    ),
    (
        r"requested time limit is invalid|job violates .*(?:time|wall)",
        CommandError,
        "the partition does not allow so long a job",
        "sinfo --format='%P %l', and that limit as `time` in the target's entry: the run is then requeued",
    ),
    (
        r"more processors requested than permitted|node count|violates accounting/qos policy",
        CommandError,
        "the partition or your share does not allow so many nodes or CPUs",
        "sinfo --format='%P %s', and fix `resources`",
    ),
    (r"reservation", CommandError, "Slurm refuses that reservation", "scontrol show reservation"),
    (
        r"batch job submission failed: (?:i/o error|no space)|write error|slurm temporarily unable to accept",
        CommandError,
        "the controller cannot take jobs now",
        "scontrol ping; try again later",
    ),
)


URL_LABEL = "headway.url"
# Final job states, in words. Any other state, including those of later Slurm versions, counts as live.
FINAL_STATES = {
    "BOOT_FAIL": "a node did not boot",
    "CANCELLED": "cancelled",
    "COMPLETED": "completed",
    "DEADLINE": "could not have ended within `max_wait` and its time",
    "FAILED": "failed",
    "LAUNCH_FAILED": "could not be launched on its nodes",
    "NODE_FAIL": "a node failed",
    "OUT_OF_MEMORY": "needed more memory than it had asked for (resources.memory)",
    "PREEMPTED": "preempted",
    "RECONFIG_FAIL": "a node could not be reconfigured for it",
    "REVOKED": "another cluster took it",
    "TIMEOUT": "reached Slurm's time limit",
}
RUNNING_STATES = ("RUNNING", "SIGNALING", "STAGE_OUT")
COMPLETING = "COMPLETING"


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job of ours, as Slurm lists it."""

    id: str
    state: str
    nodes: str = ""
    reason: str = ""  # the reason why it waits
    run: str = ""
    url: str = ""
    expires: str = ""
    owner: str = ""  # empty: submitted by a version of Headway that did not record it
    owner_name: str = ""

    def __str__(self) -> str:
        where = f" on {self.nodes}" if self.nodes else ""
        return f"Slurm job {self.id} ({self.state.lower()}{where})"

    @property
    def live(self) -> bool:
        return self.state not in FINAL_STATES


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEnd:
    """How a job ended: Slurm's state, and the exit code if Slurm has one."""

    state: str
    exit_code: int | None = None

    def __str__(self) -> str:
        code = f", exit code {self.exit_code}" if self.exit_code else ""
        return f"{FINAL_STATES.get(self.state, self.state.lower())}{code}"


def label(url: str, run: str, expires: str = "", owner: str = "", owner_name: str = "") -> str:
    """Return the comment that identifies a job's run and owner. It needs no quoting in a script."""
    pairs = {
        RUN_LABEL: run,
        EXPIRES_LABEL: expires,
        OWNER_LABEL: owner,
        OWNER_NAME_LABEL: owner_name,
        URL_LABEL: quote(url, safe="/:{}"),
    }
    return ",".join(f"{name}={value}" for name, value in pairs.items() if value)


def jobs(run_command: CommandRunner) -> list[Job]:
    """List the user's jobs with our label: live ones, and ended ones that Slurm still remembers."""
    argv = ["squeue", "--noheader", "--states=all", f"--user={os.geteuid()}", "--format=%A|%T|%N|%r|%k"]
    parsed = (_parse_job(line) for line in run_command(argv).split("\n"))
    return [job for job in parsed if job is not None]


def cluster_name(run_command: CommandRunner) -> str:
    """Return the name of the cluster that Slurm's commands lead to; empty if it has none."""
    found = re.search(r"(?m)^ClusterName\s*=\s*(\S+)", run_command(["scontrol", "show", "config"]))
    return "" if found is None or found[1] == "(null)" else found[1]


def require_cluster(run_command: CommandRunner, name: str) -> None:
    """Raise AnotherCluster unless Slurm's commands lead to the cluster of that name. Empty: not recorded."""
    here = cluster_name(run_command) if name else ""
    if here != name:
        raise AnotherCluster(
            f"it was submitted to the Slurm cluster {name}, the commands here lead to {here or 'one without a name'}",
            fix=f"the same command on a login node of {name}; or export SLURM_CONF=/path/to/its/slurm.conf",
        )


def jobs_of(run_command: CommandRunner, url: str, job_id: str | None = None, *, run_dir: Path) -> list[Job]:
    """List the jobs of one run by label, or by the ID `job_id` if the site rewrites comments or the list lacks it.

    `run_dir` is the folder from which it was submitted.
    """
    return [job for job in jobs(run_command) if is_same_folder(job.url, url)] or _job_by_id(
        run_command, url, job_id, run_dir
    )


def is_ours(run_command: CommandRunner, job_id: str, url: str, run_dir: Path) -> bool | None:
    """Return whether the job of this ID is the run's. None if Slurm says nothing about it. Raises Unknown."""
    row = _row_of(run_command, job_id)
    return None if row is None else row.is_of(url, run_dir)


def job_end(run_command: CommandRunner, job_id: str) -> JobEnd | None:
    """Return how a job ended, from the controller, the accounting or the job completion log, whichever still has it."""
    for source in (_end_from_controller, _end_from_accounting, _end_from_completions):
        try:
            end = source(run_command, job_id)
        except Unreachable:
            raise
        except (NotInstalled, CommandError):  # no longer known, or no such record on this cluster: try the next
            continue
        if end is not None:
            return end
    return None


def _parse_job(line: str) -> Job | None:
    fields = line.strip().split("|", 4)
    if len(fields) < 5:
        return None
    labels = dict(pair.partition("=")[::2] for pair in fields[4].split(","))
    if not labels.get(RUN_LABEL) or not labels.get(URL_LABEL):
        return None
    return Job(
        id=fields[0],
        state=fields[1],
        nodes=fields[2],
        reason="" if fields[3] == "None" else fields[3],
        run=labels[RUN_LABEL],
        url=unquote(labels[URL_LABEL]),
        expires=labels.get(EXPIRES_LABEL, ""),
        owner=labels.get(OWNER_LABEL, ""),
        owner_name=unquote(labels.get(OWNER_NAME_LABEL, "")),
    )


def _job_by_id(run_command: CommandRunner, url: str, job_id: str | None, run_dir: Path) -> list[Job]:
    """Find a job by ID; accept it only with this run's label, or without any if submitted from this run's folder.

    Slurm reuses IDs after millions of jobs, and a copy of a run folder contains the original's ID.
    """
    if not job_id:
        return []
    try:
        row = _row_of(run_command, job_id)
    except Unknown:
        return []
    return [replace(row.job, url=url)] if row is not None and row.is_of(url, run_dir) else []


@dataclass(frozen=True, slots=True)
class _Row:
    """One job by its ID, and what tells whose it is."""

    job: Job
    user: str
    submitted_from: str
    comment: str

    def is_of(self, url: str, run_dir: Path) -> bool:
        if self.user != str(os.geteuid()):
            return False
        label = dict(pair.partition("=")[::2] for pair in self.comment.split(",")).get(URL_LABEL)
        return is_same_folder(unquote(label), url) if label else is_same_folder(self.submitted_from, str(run_dir))


def _row_of(run_command: CommandRunner, job_id: str) -> _Row | None:
    row = run_command(["squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%A|%T|%N|%r|%U|%Z|%k"])
    fields = row.strip().split("|", 5)
    if len(fields) < 6:
        return None
    submitted_from, _, comment = fields[5].rpartition("|")
    job = Job(id=fields[0], state=fields[1], nodes=fields[2], reason=fields[3])
    return _Row(job, fields[4], submitted_from, comment)


def _end_from_controller(run_command: CommandRunner, job_id: str) -> JobEnd | None:
    output = run_command(["scontrol", "show", "job", job_id, "--oneliner"])
    state = re.search(r"\bJobState=(\w+)", output)
    code = re.search(r"\bExitCode=(\d+):(\d+)", output)
    return _parse_end(state[1] if state else "", code[0].partition("=")[2] if code else "")


def _end_from_accounting(run_command: CommandRunner, job_id: str) -> JobEnd | None:
    return _end_from_last_row(
        run_command(
            ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job_id}", "--format=State,ExitCode"]
        )
    )


def _end_from_completions(run_command: CommandRunner, job_id: str) -> JobEnd | None:
    return _end_from_last_row(
        run_command(
            ["sacct", "--completion", "--noheader", "--parsable2", f"--jobs={job_id}", "--format=State,ExitCode"]
        )
    )


def _end_from_last_row(rows: str) -> JobEnd | None:
    """Parse the last row: a requeued job has one row per start."""
    lines = [line for line in rows.splitlines() if line.strip()]
    state, _, code = lines[-1].partition("|") if lines else ("", "", "")
    return _parse_end(state, code)


def _parse_end(state: str, code: str) -> JobEnd | None:
    state = state.partition(" ")[0]  # "CANCELLED by 1000"
    if state not in FINAL_STATES:
        return None
    status, _, number = code.partition(":")
    signal_number = int(number) if number.isdigit() else 0
    return JobEnd(
        state=state, exit_code=128 + signal_number if signal_number else int(status) if status.isdigit() else None
    )
