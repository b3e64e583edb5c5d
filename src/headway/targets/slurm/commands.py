"""Slurm's own commands: the one seam to a cluster. What they refuse comes out as our errors, with what to type."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from headway.errors import TargetError

_PREFERENCES = ("SACCT_", "SCANCEL_", "SINFO_", "SQUEUE_")
ANSWER_S = 90.0  # a busy controller makes its clients try again for a while; after this it is stuck


class Refusal(TargetError):
    """Slurm, or its command, said no. `said` is its own word."""

    def __init__(self, what: str, *, said: str = "", where: str = "", fix: str = "") -> None:
        super().__init__(what, where=where, fix=fix)
        self.said = said


class NotInstalled(Refusal):
    """There is no such command on this machine."""


class Unreachable(Refusal):
    """The command is here, and no controller answers it."""


class Unknown(Refusal):
    """Slurm does not know that job, any more or at all."""


class Ask(Protocol):
    """Runs one command and returns what it printed. Raises a Refusal."""

    def __call__(
        self, argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> str: ...


def run(argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """The real one."""
    env = plain(os.environ) if env is None else env
    try:
        done = subprocess.run(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S)
    except FileNotFoundError:
        raise not_installed(argv[0]) from None
    except PermissionError:
        raise NotInstalled(f"{argv[0]} cannot be run by this user", fix=f"ls -l $(which {argv[0]})") from None
    except subprocess.TimeoutExpired:
        raise Unreachable(f"`{argv[0]}` has not been answered for {ANSWER_S:.0f} s", fix="scontrol ping") from None
    # Paths and comments are bytes to Slurm: surrogates carry those that are not UTF-8.
    printed, complaint = (text.decode("utf-8", "surrogateescape") for text in (done.stdout, done.stderr))
    if done.returncode:
        raise refusal(argv, complaint.strip() or printed.strip())
    return printed


def plain(shell: Mapping[str, str]) -> dict[str, str]:
    """The environment without a person's preferences for listings, which would leave out what we look for."""
    return {name: value for name, value in shell.items() if not name.startswith(_PREFERENCES)}


def not_installed(command: str) -> NotInstalled:
    return NotInstalled(
        f"{command} is not here: Slurm's commands are on the login nodes of a cluster",
        fix="run headway on a login node; or, where they are in a module: module load slurm",
    )


def refusal(argv: Sequence[str], said: str) -> Refusal:
    """What the command printed when it failed, as an error that says what to type."""
    for pattern, kind, what, fix in _KNOWN:
        if re.search(pattern, said, re.IGNORECASE):
            return kind(what, said=said, fix=fix)
    lines = [re.sub(r"^\w+: (?:error: )?", "", line.strip()) for line in said.splitlines() if line.strip()]
    return Refusal(f"{argv[0]}: {lines[-1] if lines else 'it gave no reason'}"[:400], said=said)


_SINFO = "sinfo --summarize"
# (what it says, kind of error, what happened, what to type). The first that fits.
_KNOWN: tuple[tuple[str, type[Refusal], str, str], ...] = (
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
        Refusal,
        "the cluster has no such partition",
        f"{_SINFO}, and one of them as `partition` in the target's entry",
    ),
    (
        r"invalid account|account/partition combination",
        Refusal,
        "Slurm does not let you submit under that account in that partition",
        "sacctmgr show associations user=$USER, and one of them as `account` in the target's entry",
    ),
    (
        r"invalid qos",
        Refusal,
        "Slurm does not let you use that quality of service",
        "sacctmgr show associations user=$USER format=account,qos, and one of them as `qos` in the target's entry",
    ),
    (
        r"invalid feature|invalid constraint",
        Refusal,
        "no node has the features that `constraint` names",
        "sinfo --format='%N %f'",
    ),
    (
        r"requested node configuration is not available|invalid generic resource",
        Refusal,
        "no node of that partition has what the job asks for",
        "sinfo --format='%P %D nodes: %c CPUs, %m MB, %G', then mend `resources`, or `gres` in the target's entry",
    ),
    (
        r"requested time limit is invalid|job violates .*(?:time|wall)",
        Refusal,
        "the partition does not allow so long a job",
        "sinfo --format='%P %l', and that limit as `time` in the target's entry: the run goes on by requeue",
    ),
    (
        r"more processors requested than permitted|node count|violates accounting/qos policy",
        Refusal,
        "the partition or your share does not allow so many nodes or CPUs",
        "sinfo --format='%P %s', and mend `resources`",
    ),
    (r"reservation", Refusal, "Slurm refuses that reservation", "scontrol show reservation"),
    (
        r"batch job submission failed: (?:i/o error|no space)|write error|slurm temporarily unable to accept",
        Refusal,
        "the controller cannot take jobs now",
        "scontrol ping, and again later",
    ),
)
