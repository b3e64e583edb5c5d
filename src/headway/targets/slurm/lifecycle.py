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

from headway.core.command import CommandError
from headway.core.retry import Backoff, poll_while
from headway.core.types import OWNER, OWNER_NAME, Handle, Receipt
from headway.rundir.status import END_RECORD_S, grace_s
from headway.rundir.submission import owner
from headway.storage import join, open_store
from headway.storage.secrets import Reference, parse, resolve
from headway.targets.local import processes
from headway.targets.slurm import client, sbatch
from headway.targets.slurm.client import COMPLETING, RUNNING_STATES, CommandRunner, Job, Unknown, jobs_of
from headway.targets.slurm.options import Options

if TYPE_CHECKING:
    from headway.core.plan import Plan


# Teardown


LEAVING_S = 10.0  # wait for the job of an ended run to leave by itself
FORCE_S = 120.0  # wait for a cancelled job to go: KillWait, an epilog, a slow node
FIRST_POLL_S, LONGEST_POLL_S = 0.2, 2.0  # poll interval, growing to spare the controller


def take_down(run_command: CommandRunner, handle: Handle, *, job_id: str, run_dir: Path, ended: bool) -> Receipt:
    """Send SIGTERM to the supervisors, wait for the grace period, then scancel. Cancel queued jobs at once.

    Slurm may requeue a job at any time, so act on its current state at each poll until it is gone. The receipt comes
    from a listing made at the end.
    """
    seen: dict[str, Job] = {job_id: Job(id=job_id, state="gone")} if job_id else {}
    signalled: set[str] = set()

    def remaining() -> list[Job]:
        live = [job for job in jobs_of(run_command, handle.url, job_id, run_dir=run_dir) if job.live]
        seen.update({job.id: job for job in live})
        return live

    unverified = _cancel_unlisted(run_command, handle, job_id, run_dir) if job_id and not remaining() else False
    grace = grace_s(handle) + END_RECORD_S
    for left, waited_s in _poll(remaining, LEAVING_S if ended else grace):
        for job in left:
            if job.state not in (*RUNNING_STATES, COMPLETING):
                _scancel(run_command, job.id)
            elif job.state in RUNNING_STATES and job.id not in signalled and (not ended or waited_s > LEAVING_S / 2):
                signalled.add(job.id)
                _scancel(run_command, "--signal=TERM", job.id)
    for left, _ in _poll(remaining, FORCE_S):
        for job in left:
            if job.state != COMPLETING:
                _scancel(run_command, job.id)
    still_live = {job.id: str(job) for job in remaining()}
    return Receipt(
        run=handle.run,
        created=tuple(f"Slurm job {number}" for number in seen),
        removed=tuple(f"Slurm job {number}" for number in seen if number not in still_live),
        left=tuple(still_live.values()),
        unverified=(f"Slurm job {job_id}",) if unverified and not still_live else (),
    )


def _cancel_unlisted(run_command: CommandRunner, handle: Handle, job_id: str, run_dir: Path) -> bool:
    """Cancel the recorded job although no list shows it live. Return whether its end stays unverified.

    It is certain if Slurm does not know the ID any more, shows how the job ended, or gave the ID to another job.
    """
    try:
        ours = client.is_ours(run_command, job_id, handle.url, run_dir)
        if ours is False:
            return False
        if ours is None:
            run_command(["scancel", job_id])
            return client.job_end(run_command, job_id) is None
    except Unknown:
        pass
    return False


def _poll(remaining: Callable[[], list[Job]], within_s: float) -> Iterator[tuple[list[Job], float]]:
    """Yield the live jobs and the seconds waited, at each poll, until no job is left or the time is up."""
    return poll_while(remaining, Backoff(FIRST_POLL_S, LONGEST_POLL_S, factor=1.3), within_s=within_s)


def _scancel(run_command: CommandRunner, *arguments: str) -> None:
    try:
        run_command(["scancel", *arguments])
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
_SLURM_PREFIXES = ("SBATCH_", "SLURM_", "SRUN_")  # the last two: from an allocation that this client may run in


def stage(plan: Plan, run_dir: Path) -> None:
    """Stage the code, Headway, the secrets and one folder per node in the shared folder."""
    outputs = str(plan.job["outputs"])
    with processes.map_os_errors(run_dir):
        processes.unpack_code(join(outputs, f"code/{plan.code.sha256}.tar.gz"), plan.code.sha256, run_dir / "code")
        (run_dir / "code").mkdir(exist_ok=True)  # a recipe has none
        _unzip(open_store(join(outputs, "code")).read(plan.code.wheel), run_dir / "headway")
        (run_dir / "spool").mkdir(exist_ok=True)
        for node in range(plan.nodes):
            _make_node_dir(run_dir, node)
        _write_secrets(plan, run_dir)


def submit(plan: Plan, run: str, run_dir: Path, text: str, options: Options, run_command: CommandRunner) -> str:
    """Submit the job and return its ID. If anything fails after Slurm has accepted it, cancel it."""
    limit = sbatch.lifetime_s(plan, options)
    expires = "" if limit is None else str(int(time.time() + limit))
    current_owner = owner()
    for placeholder, value in (
        (sbatch.EXPIRES, expires),
        (OWNER, current_owner.id),
        (OWNER_NAME, quote(current_owner.name, safe="@")),
    ):
        text = text.replace(placeholder, value, 1)  # the job's comment precedes any text of the user's
    text = processes.fill_run_name(text, run)
    job_id = ""
    try:
        with processes.map_os_errors(run_dir):
            (run_dir / sbatch.EXIT).unlink(missing_ok=True)
            (run_dir / sbatch.SCRIPT).write_text(text, encoding="utf-8")
            env = environment(os.environ, plan, options)
            output = run_command(["sbatch", "--parsable", sbatch.SCRIPT], cwd=run_dir, env=env)
            job_id = output.strip().partition(";")[0]
            _write_job_id(run_dir, job_id)
            return job_id
    except BaseException:  # Ctrl-C too: a queued job would run eventually
        if job_id:
            _cancel_quietly(job_id, run_command)
        clear_secrets(run_dir)
        raise


def read_job_id(run_dir: Path) -> str:
    """Return the ID of the job submitted last; empty if unknown."""
    try:
        return (run_dir / JOB).read_text().strip()
    except OSError:
        return ""


def environment(shell: Mapping[str, str], plan: Plan, options: Options) -> dict[str, str]:
    """Return the environment for sbatch and the job: this shell's, less another run's variables and the secrets."""
    references: list[Reference] = [parse(reference) for reference in sbatch.client_secrets(plan.job).values()]
    hidden = {reference.name for reference in references if reference.kind == "env"}
    inherited = client.without_listing_options(processes.environment(shell, {}))
    return {
        name: value
        for name, value in inherited.items()
        if name not in hidden
        and (not name.startswith(_SLURM_PREFIXES) or name == "SLURM_CONF" or _is_unset(name, options))
    }


def clear_secrets(run_dir: Path) -> None:
    shutil.rmtree(run_dir / sbatch.PRIVATE, ignore_errors=True)


def last_line(run_dir: Path, job_id: str) -> str:
    """Return the last line that the job's script printed, to explain why it ended."""
    try:
        printed = (run_dir / sbatch.LOG.replace("%j", job_id)).read_text("utf-8", "replace")[-4096:].split("\n")
    except OSError:
        return ""
    # Slurm's own messages about the end come after its cause.
    lines = [line.strip() for line in printed if line.strip() and not line.startswith(("slurmstepd", "srun:"))]
    return lines[-1][:300] if lines else ""


def recorded_exit_code(run_dir: Path, job_id: str) -> int | None:
    """Return the exit code that this job's script recorded; None if it recorded none."""
    try:
        job, _, code = (run_dir / sbatch.EXIT).read_text().strip().partition(" ")
    except OSError:
        return None
    return int(code) if job == job_id and code.isdigit() else None


def _is_unset(name: str, options: Options) -> bool:
    return name in _SITE_DEFAULTS and getattr(options, _SITE_DEFAULTS[name]) is None


def _make_node_dir(run_dir: Path, node: int) -> None:
    """Create a node's folder: its script's files are separate, its spool is a link to the shared one for `tail`."""
    node_dir = run_dir / f"node-{node}"
    node_dir.mkdir(exist_ok=True)
    if not (node_dir / "spool").is_symlink():
        (node_dir / "spool").symlink_to(Path("..") / "spool")


def _write_secrets(plan: Plan, run_dir: Path) -> None:
    """Write the secrets to one file with mode 0600. The job's script deletes it as soon as it has read it."""
    references = sbatch.client_secrets(plan.job)
    clear_secrets(run_dir)
    if not references:
        return
    values = {name: resolve(reference) for name, reference in references.items()}
    private = run_dir / sbatch.PRIVATE
    private.mkdir(mode=0o700)
    with open(os.open(private / sbatch.SECRETS_VARIABLE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(values, file)


def _write_job_id(run_dir: Path, job_id: str) -> None:
    open_store(str(run_dir)).write(JOB, f"{job_id}\n".encode())


def _cancel_quietly(job_id: str, run_command: CommandRunner) -> None:
    try:
        run_command(["scancel", job_id])
    except CommandError:
        pass  # the launcher lists and reports what is left


def _unzip(wheel: bytes, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    with zipfile.ZipFile(io.BytesIO(wheel)) as content:
        content.extractall(to)
