"""`headway verify-resume`: prove for a job that killed and resumed training equals uninterrupted training.

It trains a few steps twice, once uninterrupted, once killed and resumed, and compares the results. Both are real runs
of the local target in a temporary folder, which is removed at the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import BadInput, RunFailed
from headway.core.plan import DIE_AFTER_STEP, STEP_LIMIT
from headway.core.program import program_text
from headway.core.types import LogLine, State
from headway.launcher.rehearse import scratch_dir, without_effects
from headway.rundir.index import RunIndex
from headway.rundir.layout import RunFolder
from headway.spec import Cadence, Checkpoint, to_plain
from headway.tools.verify_checks import (
    CheckpointComparison,
    MetricComparison,
    NondeterminismSuspect,
    compare_histories,
    find_suspects,
)

if TYPE_CHECKING:
    from headway.launcher.lifecycle import RunHandle
    from headway.planning import Plan
    from headway.spec import Job


# The likely cause of a difference, and its fix


TINY = 1e-4  # smaller differences come from the order of additions, not from other inputs


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """The most likely cause, the lines to check, and the fix."""

    words: str
    fix: str
    look_at: tuple[NondeterminismSuspect, ...] = ()


def likely_cause(
    compared: CheckpointComparison,
    histories: MetricComparison,
    resumed_from: int,
    suspects: Sequence[NondeterminismSuspect],
) -> Cause:
    """Infer the cause from where the runs diverge: before the kill, at the first step after the resume, or later."""
    seen = (histories.first_step, compared.first.step if compared.first else None)
    parted = min(step for step in seen if step is not None)
    if parted <= resumed_from:
        return _never_deterministic(parted, compared, suspects)
    if histories.first_step == resumed_from + 1:
        return Cause(
            words=f"the first step after the resume ({parted}) sees other data or random numbers: the order of "
            "the data, or a random generator of the script, is not restored",
            fix="give run.steps a headway.runtime.Loader, use the default random generators, which are seeded at "
            "every step, or pass an object whose state_dict holds the generator's state to run.restore",
            look_at=_of(suspects, "own", "iterator"),
        )
    return Cause(
        words="the first steps after the resume are equal and later ones differ: some state of the optimizer or the "
        "model is not restored",
        fix="pass everything that changes while training to run.restore: each optimizer, schedule, scaler, and "
        "modules with buffers that are kept out of their state_dict",
        look_at=_of(suspects, "own", "iterator"),
    )


def _never_deterministic(
    parted: int, compared: CheckpointComparison, suspects: Sequence[NondeterminismSuspect]
) -> Cause:
    """Explain a difference from before the kill: the job itself is nondeterministic, and resuming is not at fault."""
    unseeded = _of(suspects, "unseeded")
    if not unseeded and compared.largest < TINY:
        return Cause(
            words=f"two uninterrupted runs differ slightly (from step {parted} on): an operation sums in a different "
            "order each time",
            fix="set exact: true in the job file for deterministic GPU kernels; on the CPU set OMP_NUM_THREADS",
        )
    return Cause(
        words=f"unseeded randomness: the runs differ already at step {parted}, before anything was killed, so the job "
        "gives different results in each run",
        fix="seed every generator from run.seed, and shuffle with it; those of Python, numpy and torch are seeded for "
        "you",
        look_at=unseeded,
    )


def _of(suspects: Sequence[NondeterminismSuspect], *kinds: str) -> tuple[NondeterminismSuspect, ...]:
    return tuple(suspect for suspect in suspects if suspect.kind in kinds)


MIN_STEPS = 4  # steps: one to checkpoint, one to be killed in, one to resume with, and one more
LAST_LINES = 8  # shown of a job that fails by itself

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """Result of a verification: what was done and found, and the likely cause of a difference."""

    steps: int
    ranks: int
    killed_after: int
    resumed_from: int
    compared: CheckpointComparison
    histories: MetricComparison
    cause: Cause | None = field(default=None)

    @property
    def exact(self) -> bool:
        return self.compared.first is None and self.histories.first_step is None

    def to_dict(self) -> dict[str, Any]:
        return {"exact": self.exact, **asdict(self)}


def verify_resume(job: Job, *, steps: int, say: Say = lambda text: None) -> Proof:
    """Train `steps` steps of the job twice on this machine, and compare. Leaves nothing behind."""
    if steps < MIN_STEPS:
        raise BadInput(f"{steps} steps are too few to kill and resume a run", fix=f"--steps {MIN_STEPS} or more")
    plan, suspected = _plan(job), _suspects(job)
    with scratch_dir("headway-verify-") as folder:
        every = max(1, steps // 3)
        say(f"uninterrupted run: {steps} steps, a checkpoint every {every}")
        straight = _train(plan, folder, "unbroken", every, {STEP_LIMIT: str(steps)})
        last = _last_step(straight)
        every = every if every < last else max(1, last // 2)
        killed_after = random.SystemRandom().randint(every, last - 1)
        say(f"second run: every rank is killed (SIGKILL) in the step after {killed_after}, then resumed")
        broken = _train(plan, folder, "killed", every, {STEP_LIMIT: str(steps), DIE_AFTER_STEP: str(killed_after)})
        resumed_from = _resumed_from(broken)
        say(f"resumed from step {resumed_from}; comparing")
        return _conclude(plan, straight, broken, last, killed_after, resumed_from, suspected)


def _conclude(
    plan: Plan,
    straight: RunFolder,
    broken: RunFolder,
    last: int,
    killed_after: int,
    resumed_from: int,
    suspected: list[NondeterminismSuspect],
) -> Proof:
    from headway.tools.verify_checks import compare, steps_of

    compared = compare(straight.url, broken.url)
    if not compared.steps or compared.steps[-1] != last:
        ends = f"step {last} and step {max(steps_of(broken.url), default=0)}"
        raise RunFailed(f"the two runs have different last checkpoints: {ends}", where=broken.url)
    alike = [step for step in compared.steps if compared.first is None or step < compared.first.step]
    trusted = min(max(alike, default=0), resumed_from)
    histories = compare_histories(straight.metrics(), broken.metrics(), trusted=trusted)
    proof = Proof(
        steps=last,
        ranks=plan.nodes * plan.processes,
        killed_after=killed_after,
        resumed_from=resumed_from,
        compared=compared,
        histories=histories,
    )
    return proof if proof.exact else replace(proof, cause=likely_cause(compared, histories, resumed_from, suspected))


def _plan(job: Job) -> Plan:
    """Plan the job for this machine, without anything that has effects outside the run folder."""
    from headway.planning import plan

    tame = replace(without_effects(job), resources=replace(job.resources, nodes=1, spot=False))
    return plan(tame, on="local")


def _suspects(job: Job) -> list[NondeterminismSuspect]:
    """Lint the code that would be sent.

    Raises BadInput if it does not use Headway: such a script cannot be stopped after a few steps.
    """
    from headway.packaging.code import package

    if job.recipe is not None:
        return []
    files = [(name, Path(job.root, name)) for name, _ in package(job, in_place=True).files if name.endswith(".py")]
    if not any("headway" in path.read_text(errors="replace") for _, path in files):
        raise BadInput(
            f"{program_text(to_plain(job))} does not use headway.start(): "
            "there are no steps to count and no checkpoints to compare",
            where=job.root,
            fix="add the five lines shown in examples/plain-pytorch",
        )
    return find_suspects(files)


def _train(plan: Plan, outputs: Path, name: str, every: int, env: Mapping[str, str]) -> RunFolder:
    """Train one run to its end. Raises RunFailed, with its last lines, if the job fails by itself."""
    from headway import targets
    from headway.launcher.lifecycle import launch

    keep = Checkpoint(every=Cadence(steps=every), keep_last=1000, keep_best=plan.job["checkpoint"]["keep_best"])
    job = {
        **plan.job,
        "outputs": str(outputs),
        "checkpoint": to_plain(keep),
        "env": {**plan.job["env"], **env},
    }
    amended = replace(plan, job=job)
    amended = replace(amended, requests=tuple(targets.of_plan(amended).render(amended)))
    lines: list[LogLine] = []
    run = launch(amended, name=name, detach=True, run_index=RunIndex(outputs / "ledger.sqlite"))
    with _require_removed(run):
        status = run.wait(lines.append).status
    if status.state is not State.FINISHED:
        words = [line.text for line in lines[-LAST_LINES:]]
        raise RunFailed(
            f"the job does not run on this machine ({status.state.value}: {status.reason})"
            + "".join(f"\n    {w}" for w in words),
            fix="fix it, then try: headway run",
        )
    return run.folder


@contextmanager
def _require_removed(hold: RunHandle) -> Iterator[None]:
    try:
        yield
    except BaseException:  # Ctrl-C too: otherwise the run would continue
        hold.down()
        raise


def _last_step(folder: RunFolder) -> int:
    commits = [int(event["step"]) for event in folder.events() if event["kind"] == "checkpoint"]
    if not commits:
        raise BadInput(
            "the job wrote no checkpoint, so there is nothing to resume from",
            fix="run.restore(model=model, optimizer=optimizer) before the loop",
        )
    if max(commits) < 2:
        raise BadInput("the job has only one step, so it cannot be killed in the middle", fix="use more epochs or data")
    return max(commits)


def _resumed_from(folder: RunFolder) -> int:
    """Return the step from which the second attempt resumed. Raises RunFailed unless the first one was killed."""
    events = folder.events()
    killed = any(event["kind"] == "rank_exit" and event.get("signal") for event in events)
    restored = [int(event["step"]) for event in events if event["kind"] == "restored"]
    if not killed or not restored:
        raise RunFailed("the second run was not killed and resumed as planned", where=folder.url)
    return restored[-1]


__all__ = ["Proof", "verify_resume"]
