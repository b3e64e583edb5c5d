"""Stage a run in the shared folder, submit its job (all or nothing), and take it down."""

from __future__ import annotations

import io
import json
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from headway.core.types import OWNER, OWNER_NAME, Handle, Receipt
from headway.rundir.status import END_RECORD_S, grace_s
from headway.rundir.submission import owner
from headway.storage import join, open_store
from headway.storage.secrets import Reference, parse, resolve
from headway.targets.local import processes
from headway.targets.slurm import client, sbatch
from headway.targets.slurm.client import ENDING, RUNNING, CommandError, CommandRunner, Job, Unknown, jobs_of
from headway.targets.slurm.options import Options

if TYPE_CHECKING:
    from headway.core.plan import Plan


# Teardown


LEAVING_S = 10.0  # wait for the job of an ended run to leave by itself
FORCE_S = 120.0  # wait for a cancelled job to go: KillWait, an epilog, a slow node
FIRST_LOOK_S, LONGEST_LOOK_S = 0.2, 2.0  # poll interval, growing to spare the controller


def take_down(ask: CommandRunner, handle: Handle, *, known: str, place: Path, ended: bool) -> Receipt:
    """Send SIGTERM to the supervisors, wait for the grace period, then scancel. Cancel queued jobs at once.

    Slurm may requeue a job at any time, so act on its current state at each poll until it is gone. The receipt comes
    from a listing made at the end.
    """
    seen: dict[str, Job] = {known: Job(id=known, state="gone")} if known else {}
    asked: set[str] = set()

    def remaining() -> list[Job]:
        live = [job for job in jobs_of(ask, handle.url, known, place=place) if job.live]
        seen.update({job.id: job for job in live})
        return live

    patience = grace_s(handle) + END_RECORD_S
    for left, waited_s in _looks(remaining, LEAVING_S if ended else patience):
        for job in left:
            if job.state not in (*RUNNING, ENDING):
                _scancel(ask, job.id)
            elif job.state in RUNNING and job.id not in asked and (not ended or waited_s > LEAVING_S / 2):
                asked.add(job.id)
                _scancel(ask, "--signal=TERM", job.id)
    for left, _ in _looks(remaining, FORCE_S):
        for job in left:
            if job.state != ENDING:
                _scancel(ask, job.id)
    stayed = {job.id: str(job) for job in remaining()}
    return Receipt(
        run=handle.run,
        created=tuple(f"Slurm job {number}" for number in seen),
        removed=tuple(f"Slurm job {number}" for number in seen if number not in stayed),
        left=tuple(stayed.values()),
    )


def _looks(remaining: Callable[[], list[Job]], within_s: float) -> Iterator[tuple[list[Job], float]]:
    """Yield the live jobs and the seconds waited, at each poll, until no job is left or the time is up."""
    began, pause = time.monotonic(), FIRST_LOOK_S
    while (waited_s := time.monotonic() - began) < within_s and (left := remaining()):
        yield left, waited_s
        time.sleep(pause)
        pause = min(LONGEST_LOOK_S, pause * 1.3)


def _scancel(ask: CommandRunner, *words: str) -> None:
    try:
        ask(["scancel", *words])
    except Unknown:
        pass  # ended since it was listed


JOB = "job.id"
# Site defaults for options that the job leaves open. Other SBATCH_ variables would override the script's options.
_SITE_DEFAULTS = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
}
_ORDERS = ("SBATCH_", "SLURM_", "SRUN_")  # the last two: from an allocation that this client may run in


def lay_ready(plan: Plan, place: Path) -> None:
    """Stage the code, Headway, the secrets and one folder per node in the shared folder."""
    outputs = str(plan.job["outputs"])
    with processes.translated(place):
        processes.bring_code(join(outputs, f"code/{plan.code.sha256}.tar.gz"), plan.code.sha256, place / "code")
        (place / "code").mkdir(exist_ok=True)  # a recipe has none
        _unzip(open_store(join(outputs, "code")).read(plan.code.wheel), place / "headway")
        (place / "spool").mkdir(exist_ok=True)
        for node in range(plan.nodes):
            _own_folder(place, node)
        _lay_secrets(plan, place)


def submit(plan: Plan, run: str, place: Path, text: str, options: Options, ask: CommandRunner) -> str:
    """Submit the job and return its ID. If anything fails after Slurm has accepted it, cancel it."""
    limit = sbatch.lifetime_s(plan, options)
    expires = "" if limit is None else str(int(time.time() + limit))
    us = owner()
    for mark, value in ((sbatch.EXPIRES, expires), (OWNER, us.id), (OWNER_NAME, quote(us.name, safe="@"))):
        text = text.replace(mark, value, 1)  # the job's comment precedes any text of the user's
    text = processes.named(text, run)
    number = ""
    try:
        with processes.translated(place):
            (place / sbatch.EXIT).unlink(missing_ok=True)
            (place / sbatch.SCRIPT).write_text(text, encoding="utf-8")
            env = environment(os.environ, plan, options)
            printed = ask(["sbatch", "--parsable", sbatch.SCRIPT], cwd=place, env=env)
            number = printed.strip().partition(";")[0]
            _record(place, number)
            return number
    except BaseException:  # Ctrl-C too: a queued job would run eventually
        if number:
            _take_back(number, ask)
        clear_secrets(place)
        raise


def recorded(place: Path) -> str:
    """Return the ID of the job submitted last; empty if unknown."""
    try:
        return (place / JOB).read_text().strip()
    except OSError:
        return ""


def environment(shell: Mapping[str, str], plan: Plan, options: Options) -> dict[str, str]:
    """Return the environment for sbatch and the job: this shell's, less another run's variables and the secrets."""
    references: list[Reference] = [parse(reference) for reference in sbatch.brought(plan.job).values()]
    hidden = {reference.name for reference in references if reference.kind == "env"}
    inherited = client.plain(processes.environment(shell, {}))
    return {
        name: value
        for name, value in inherited.items()
        if name not in hidden and (not name.startswith(_ORDERS) or name == "SLURM_CONF" or _is_open(name, options))
    }


def clear_secrets(place: Path) -> None:
    shutil.rmtree(place / sbatch.PRIVATE, ignore_errors=True)


def last_line(place: Path, number: str) -> str:
    """Return the last line that the job's script printed, to explain why it ended."""
    try:
        printed = (place / sbatch.LOG.replace("%j", number)).read_text("utf-8", "replace")[-4096:].split("\n")
    except OSError:
        return ""
    # Slurm's own messages about the end come after its cause.
    lines = [line.strip() for line in printed if line.strip() and not line.startswith(("slurmstepd", "srun:"))]
    return lines[-1][:300] if lines else ""


def said_at_exit(place: Path, number: str) -> int | None:
    """Return the exit code that this job's script recorded; None if it recorded none."""
    try:
        job, _, code = (place / sbatch.EXIT).read_text().strip().partition(" ")
    except OSError:
        return None
    return int(code) if job == number and code.isdigit() else None


def _is_open(name: str, options: Options) -> bool:
    return name in _SITE_DEFAULTS and getattr(options, _SITE_DEFAULTS[name]) is None


def _own_folder(place: Path, node: int) -> None:
    """Create a node's folder: its script's files are separate, its spool is a link to the shared one for `tail`."""
    own = place / f"node-{node}"
    own.mkdir(exist_ok=True)
    if not (own / "spool").is_symlink():
        (own / "spool").symlink_to(Path("..") / "spool")


def _lay_secrets(plan: Plan, place: Path) -> None:
    """Write the secrets to one file with mode 0600. The job's script deletes it as soon as it has read it."""
    wanted = sbatch.brought(plan.job)
    clear_secrets(place)
    if not wanted:
        return
    values = {name: resolve(reference) for name, reference in wanted.items()}
    private = place / sbatch.PRIVATE
    private.mkdir(mode=0o700)
    with open(os.open(private / sbatch.SECRETS_VARIABLE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(values, file)


def _record(place: Path, number: str) -> None:
    open_store(str(place)).write(JOB, f"{number}\n".encode())


def _take_back(number: str, ask: CommandRunner) -> None:
    try:
        ask(["scancel", number])
    except CommandError:
        pass  # the launcher lists and reports what is left


def _unzip(wheel: bytes, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    with zipfile.ZipFile(io.BytesIO(wheel)) as content:
        content.extractall(to)
