"""Run Slurm's commands, and read our jobs: those in the queue, and how a job that has left it ended.

A job's comment, `headway.run=…,headway.url=…`, identifies its run, so jobs can be found without local records.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, unquote

from headway.core.errors import TargetError
from headway.core.types import EXPIRES_LABEL, OWNER_LABEL, OWNER_NAME_LABEL, RUN_LABEL
from headway.storage import same_place

# Slurm's commands, the only access to a cluster. Failures raise CommandError, with a command that helps.


_PREFERENCES = ("SACCT_", "SCANCEL_", "SINFO_", "SQUEUE_")
ANSWER_S = 90.0  # commands retry while the controller is busy; after this it is stuck


class CommandError(TargetError):
    """A failed Slurm command. `said` is its message."""

    def __init__(self, what: str, *, said: str = "", where: str = "", fix: str = "") -> None:
        super().__init__(what, where=where, fix=fix)
        self.said = said


class NotInstalled(CommandError):
    """The command is not on this machine."""


class Unreachable(CommandError):
    """No controller answers the command."""


class Unknown(CommandError):
    """Slurm does not know the job, or no longer."""


class CommandRunner(Protocol):
    """Runs one command and returns its output. Raises CommandError."""

    def __call__(
        self, argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> str: ...


def run(argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a command as a subprocess: the default CommandRunner."""
    env = plain(os.environ) if env is None else env
    try:
        done = subprocess.run(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S)
    except FileNotFoundError:
        raise not_installed(argv[0]) from None
    except PermissionError:
        raise NotInstalled(f"{argv[0]} cannot be run by this user", fix=f"ls -l $(which {argv[0]})") from None
    except subprocess.TimeoutExpired:
        raise Unreachable(f"`{argv[0]}` has not been answered for {ANSWER_S:.0f} s", fix="scontrol ping") from None
    # Slurm's paths and comments are bytes: surrogateescape preserves what is not UTF-8.
    printed, complaint = (text.decode("utf-8", "surrogateescape") for text in (done.stdout, done.stderr))
    if done.returncode:
        raise refusal(argv, complaint.strip() or printed.strip())
    return printed


def plain(shell: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the user's settings for listings, which could hide the jobs we look for."""
    return {name: value for name, value in shell.items() if not name.startswith(_PREFERENCES)}


def not_installed(command: str) -> NotInstalled:
    return NotInstalled(
        f"{command} is not here: Slurm's commands are on the login nodes of a cluster",
        fix="run headway on a login node; or, where they are in a module: module load slurm",
    )


def refusal(argv: Sequence[str], said: str) -> CommandError:
    """Turn a failed command's output into a CommandError with a fix."""
    for pattern, kind, what, fix in _KNOWN:
        if re.search(pattern, said, re.IGNORECASE):
            return kind(what, said=said, fix=fix)
    lines = [re.sub(r"^\w+: (?:error: )?", "", line.strip()) for line in said.splitlines() if line.strip()]
    return CommandError(f"{argv[0]}: {lines[-1] if lines else 'it gave no reason'}"[:400], said=said)


_SINFO = "sinfo --summarize"
# (pattern in the output, error class, message, fix). The first match wins.
_KNOWN: tuple[tuple[str, type[CommandError], str, str], ...] = (
    (
        r"unable to contact slurm controller|connection refused|socket timed out|connect failure|zero bytes were",
        Unreachable,
        "Slurm's controller does not answer",
        "scontrol ping, and again when it answers",
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
        "Slurm does not believe who we are: MUNGE, which vouches for users, is not running here",
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
        "sinfo --format='%P %D nodes: %c CPUs, %m MB, %G', then mend `resources`, or `gres` in the target's entry",
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
        "sinfo --format='%P %s', and mend `resources`",
    ),
    (r"reservation", CommandError, "Slurm refuses that reservation", "scontrol show reservation"),
    (
        r"batch job submission failed: (?:i/o error|no space)|write error|slurm temporarily unable to accept",
        CommandError,
        "the controller cannot take jobs now",
        "scontrol ping, and again later",
    ),
)


URL_LABEL = "headway.url"
# Final job states, in words. Any other state, including those of later Slurm versions, counts as live.
ENDED = {
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
RUNNING = ("RUNNING", "SIGNALING", "STAGE_OUT")
ENDING = "COMPLETING"


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job of ours, as Slurm lists it."""

    id: str
    state: str
    nodes: str = ""
    why: str = ""  # the reason why it waits
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
        return self.state not in ENDED


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEnd:
    """How a job ended: Slurm's state, and the exit code if Slurm has one."""

    state: str
    exit_code: int | None = None

    def __str__(self) -> str:
        code = f", exit code {self.exit_code}" if self.exit_code else ""
        return f"{ENDED.get(self.state, self.state.lower())}{code}"


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


def jobs(ask: CommandRunner) -> list[Job]:
    """List the user's jobs with our label: live ones, and ended ones that Slurm still remembers."""
    argv = ["squeue", "--noheader", "--states=all", f"--user={os.geteuid()}", "--format=%A|%T|%N|%r|%k"]
    listed = (_job(line) for line in ask(argv).split("\n"))
    return [job for job in listed if job is not None]


def jobs_of(ask: CommandRunner, url: str, known: str | None = None, *, place: Path) -> list[Job]:
    """List the jobs of one run by label, or by the ID `known` if the site rewrites comments.

    `place` is the folder from which it was submitted.
    """
    return [job for job in jobs(ask) if same_place(job.url, url)] or _numbered(ask, url, known, place)


def ending(ask: CommandRunner, job_id: str) -> JobEnd | None:
    """Return how a job ended, from the controller, the accounting or the job completion log, whichever still has it."""
    for source in (_by_controller, _by_accounting, _by_completions):
        try:
            found = source(ask, job_id)
        except Unreachable:
            raise
        except (NotInstalled, CommandError):  # no longer known, or no such record on this cluster: try the next
            continue
        if found is not None:
            return found
    return None


def _job(line: str) -> Job | None:
    fields = line.strip().split("|", 4)
    if len(fields) < 5:
        return None
    carried = dict(pair.partition("=")[::2] for pair in fields[4].split(","))
    if not carried.get(RUN_LABEL) or not carried.get(URL_LABEL):
        return None
    return Job(
        id=fields[0],
        state=fields[1],
        nodes=fields[2],
        why="" if fields[3] == "None" else fields[3],
        run=carried[RUN_LABEL],
        url=unquote(carried[URL_LABEL]),
        expires=carried.get(EXPIRES_LABEL, ""),
        owner=carried.get(OWNER_LABEL, ""),
        owner_name=unquote(carried.get(OWNER_NAME_LABEL, "")),
    )


def _numbered(ask: CommandRunner, url: str, known: str | None, place: Path) -> list[Job]:
    """Find a job by ID; accept it only if it has no run's label and was submitted from this run's folder.

    Slurm reuses IDs after millions of jobs, and a copy of a run folder contains the original's ID.
    """
    if not known:
        return []
    try:
        shown = ask(["squeue", "--noheader", "--states=all", f"--jobs={known}", "--format=%A|%T|%N|%r|%U|%Z|%k"])
    except Unknown:
        return []
    fields = shown.strip().split("|", 5)
    if len(fields) < 6 or fields[4] != str(os.geteuid()):
        return []
    submitted_from, _, comment = fields[5].rpartition("|")
    if URL_LABEL in comment or not same_place(submitted_from, str(place)):
        return []
    return [Job(id=fields[0], state=fields[1], nodes=fields[2], why=fields[3], url=url)]


def _by_controller(ask: CommandRunner, job_id: str) -> JobEnd | None:
    shown = ask(["scontrol", "show", "job", job_id, "--oneliner"])
    state = re.search(r"\bJobState=(\w+)", shown)
    code = re.search(r"\bExitCode=(\d+):(\d+)", shown)
    return _ending(state[1] if state else "", code[0].partition("=")[2] if code else "")


def _by_accounting(ask: CommandRunner, job_id: str) -> JobEnd | None:
    return _last_row(
        ask(["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job_id}", "--format=State,ExitCode"])
    )


def _by_completions(ask: CommandRunner, job_id: str) -> JobEnd | None:
    return _last_row(
        ask(["sacct", "--completion", "--noheader", "--parsable2", f"--jobs={job_id}", "--format=State,ExitCode"])
    )


def _last_row(rows: str) -> JobEnd | None:
    """Parse the last row: a requeued job has one row per start."""
    lines = [line for line in rows.splitlines() if line.strip()]
    state, _, code = lines[-1].partition("|") if lines else ("", "", "")
    return _ending(state, code)


def _ending(state: str, code: str) -> JobEnd | None:
    state = state.partition(" ")[0]  # "CANCELLED by 1000"
    if state not in ENDED:
        return None
    status, _, number = code.partition(":")
    killed = int(number) if number.isdigit() else 0
    return JobEnd(state=state, exit_code=128 + killed if killed else int(status) if status.isdigit() else None)
