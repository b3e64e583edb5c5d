"""Laying ready what a job needs on the shared folder, and handing it to Slurm. All or nothing."""

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
from headway.rundir.status import FAREWELL_S, grace_s
from headway.rundir.submission import owner
from headway.storage import join, open_store
from headway.storage.secrets import Reference, parse, resolve
from headway.targets.local import spawn
from headway.targets.slurm import client, sbatch
from headway.targets.slurm.client import ENDING, RUNNING, CommandError, CommandRunner, Job, Unknown, jobs_of
from headway.targets.slurm.options import Options

if TYPE_CHECKING:
    from headway.core.plan import Plan


# Ending a run's jobs: ask, wait, cancel, look again. The receipt is what the second look found.


LEAVING_S = 10.0  # for a job whose run has said how it ended: Slurm tidies up after it
FORCE_S = 120.0  # for a cancelled job to go: KillWait, an epilog, a node that answers slowly
FIRST_LOOK_S, LONGEST_LOOK_S = 0.2, 2.0  # a quick end is seen quickly, and a long one costs the controller little


def take_down(ask: CommandRunner, handle: Handle, *, known: str, place: Path, ended: bool) -> Receipt:
    """SIGTERM to the supervisors, the plan's grace period, then scancel. What waits in the queue is cancelled at once.

    Slurm may requeue a job at any moment: until it is gone for good, each state it is seen in is answered.
    """
    seen: dict[str, Job] = {known: Job(id=known, state="gone")} if known else {}
    asked: set[str] = set()

    def remaining() -> list[Job]:
        live = [job for job in jobs_of(ask, handle.url, known, place=place) if job.live]
        seen.update({job.id: job for job in live})
        return live

    patience = grace_s(handle) + FAREWELL_S
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
    """What is left, and how long it has been waited for, again and again until nothing is or the time is over."""
    began, pause = time.monotonic(), FIRST_LOOK_S
    while (waited_s := time.monotonic() - began) < within_s and (left := remaining()):
        yield left, waited_s
        time.sleep(pause)
        pause = min(LONGEST_LOOK_S, pause * 1.3)


def _scancel(ask: CommandRunner, *words: str) -> None:
    try:
        ask(["scancel", *words])
    except Unknown:
        pass  # gone since it was listed


JOB = "job.id"
# These say what the job file left open. sbatch would take others of its variables for orders above the script's.
_SITE_DEFAULTS = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
}
_ORDERS = ("SBATCH_", "SLURM_", "SRUN_")  # the last two are of the allocation that we may ourselves run in


def lay_ready(plan: Plan, place: Path) -> None:
    """The code, Headway itself and a folder for each node, where every node sees them."""
    outputs = str(plan.job["outputs"])
    with spawn.translated(place):
        spawn.bring_code(join(outputs, f"code/{plan.code.sha256}.tar.gz"), plan.code.sha256, place / "code")
        (place / "code").mkdir(exist_ok=True)  # a recipe brings none
        _unzip(open_store(join(outputs, "code")).read(plan.code.wheel), place / "headway")
        (place / "spool").mkdir(exist_ok=True)
        for node in range(plan.nodes):
            _own_folder(place, node)
        _lay_secrets(plan, place)


def submit(plan: Plan, run: str, place: Path, text: str, options: Options, ask: CommandRunner) -> str:
    """The job's number. If anything fails after Slurm has taken it, it is taken back."""
    limit = sbatch.lifetime_s(plan, options)
    expires = "" if limit is None else str(int(time.time() + limit))
    us = owner()
    for mark, value in ((sbatch.EXPIRES, expires), (OWNER, us.id), (OWNER_NAME, quote(us.name, safe="@"))):
        text = text.replace(mark, value, 1)  # in the comment, which comes before all that is the user's
    text = spawn.named(text, run)
    number = ""
    try:
        with spawn.translated(place):
            (place / sbatch.EXIT).unlink(missing_ok=True)
            (place / sbatch.SCRIPT).write_text(text, encoding="utf-8")
            env = environment(os.environ, plan, options)
            printed = ask(["sbatch", "--parsable", sbatch.SCRIPT], cwd=place, env=env)
            number = printed.strip().partition(";")[0]
            _record(place, number)
            return number
    except BaseException:  # Ctrl-C too: a job in the queue would run one day
        if number:
            _take_back(number, ask)
        clear_secrets(place)
        raise


def recorded(place: Path) -> str:
    """The number of the job that was submitted last; empty where that is not known."""
    try:
        return (place / JOB).read_text().strip()
    except OSError:
        return ""


def environment(shell: Mapping[str, str], plan: Plan, options: Options) -> dict[str, str]:
    """What sbatch sees and hands on: this shell's variables, less another run's and less where secrets come from."""
    references: list[Reference] = [parse(reference) for reference in sbatch.brought(plan.job).values()]
    hidden = {reference.name for reference in references if reference.kind == "env"}
    inherited = client.plain(spawn.environment(shell, {}))
    return {
        name: value
        for name, value in inherited.items()
        if name not in hidden and (not name.startswith(_ORDERS) or name == "SLURM_CONF" or _is_open(name, options))
    }


def clear_secrets(place: Path) -> None:
    shutil.rmtree(place / sbatch.PRIVATE, ignore_errors=True)


def last_line(place: Path, number: str) -> str:
    """The last thing the job's script printed, for a reader who wonders why it ended."""
    try:
        printed = (place / sbatch.LOG.replace("%j", number)).read_text("utf-8", "replace")[-4096:].split("\n")
    except OSError:
        return ""
    # Slurm's own remarks on an end come after the reason for it.
    lines = [line.strip() for line in printed if line.strip() and not line.startswith(("slurmstepd", "srun:"))]
    return lines[-1][:300] if lines else ""


def said_at_exit(place: Path, number: str) -> int | None:
    """The exit code that the script of this very job left behind."""
    try:
        job, _, code = (place / sbatch.EXIT).read_text().strip().partition(" ")
    except OSError:
        return None
    return int(code) if job == number and code.isdigit() else None


def _is_open(name: str, options: Options) -> bool:
    return name in _SITE_DEFAULTS and getattr(options, _SITE_DEFAULTS[name]) is None


def _own_folder(place: Path, node: int) -> None:
    """A node keeps its script's files apart from the others', and its output with theirs, where one tail reads it."""
    own = place / f"node-{node}"
    own.mkdir(exist_ok=True)
    if not (own / "spool").is_symlink():
        (own / "spool").symlink_to(Path("..") / "spool")


def _lay_secrets(plan: Plan, place: Path) -> None:
    """One file that only its owner can read. The job's script removes it as soon as it has read it."""
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
        pass  # the launcher looks for what is left, and says so


def _unzip(wheel: bytes, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    with zipfile.ZipFile(io.BytesIO(wheel)) as content:
        content.extractall(to)
