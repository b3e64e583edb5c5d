"""Control between two steps: the only place where training is checkpointed, stopped or ended, by a decision that every
rank takes alike; also the step limit and fault injection of `headway verify-resume`.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import NoReturn

from headway.core.errors import BadInput, HeadwayError
from headway.core.plan import DIE_AFTER_STEP, STEP_LIMIT
from headway.model import Model
from headway.rundir.lease import LeaseLost
from headway.training import export
from headway.training.checkpoint.manager import CheckpointManager
from headway.training.context import Session, log_line
from headway.training.distributed.grad_sync import ReducedFlags
from headway.training.export import Bundle
from headway.training.metrics.logger import MetricsLogger
from headway.training.optim import StepFlags
from headway.training.preemption import RESERVE_S, Stop

# Step limit and fault injection


class StepLimit:
    """Ends the run after a number of steps, or kills it at a random moment. Only `headway verify-resume` uses it.

    HEADWAY_STEP_LIMIT=N ends the run after step N with a checkpoint. HEADWAY_DIE_AFTER_STEP=K makes every rank of the
    first attempt kill itself at a random moment of the step after K, once all earlier checkpoints are committed.
    """

    def __init__(self, limit: int | None, die_after: int | None) -> None:
        self._limit, self._die_after = limit, die_after
        self._before = time.monotonic()
        self._kill_timer: threading.Timer | None = None

    def before_checkpoint(self, step: int) -> None:
        """Kill the process if the step to die in is already over: late, but before its checkpoint is written."""
        if self._kill_timer is not None and self._die_after is not None and step > self._die_after:
            _kill_self()

    def after_step(self, step: int, commit: Callable[[], object]) -> bool:
        """Arm the kill timer if it is due; return whether this was the last step."""
        now = time.monotonic()
        seconds, self._before = now - self._before, now
        if self._die_after is not None and step >= self._die_after and self._kill_timer is None:
            commit()
            # The operating system's randomness, so that the run's generators are not advanced.
            self._kill_timer = threading.Timer(random.SystemRandom().random() * seconds, _kill_self)
            self._kill_timer.start()
        return self._limit is not None and step >= self._limit


def read_step_limit(env: Mapping[str, str], attempt: int) -> StepLimit | None:
    """Read the limits from the environment. Returns None if there are none, which costs nothing."""
    limit, die_after = _count(env, STEP_LIMIT), _count(env, DIE_AFTER_STEP) if attempt <= 1 else None
    return None if limit is None and die_after is None else StepLimit(limit, die_after)


def _count(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    if text and (not text.isdigit() or int(text) < 1):
        raise BadInput(f"{name}={text} is not a number of steps", where=name)
    return int(text) if text else None


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


TRACKERS_S = 60.0  # for trackers to upload the last metrics of a finished run; nothing else waits for them
EXPORT_S = 30.0  # estimate for the export, if no earlier run measured it (HEADWAY_EXPORT_S)
RESERVE_BUDGET_S = 60.0  # the least part of the budget reserved for the last checkpoint and the export


class StepBoundary:
    """Decides what happens between steps, during evaluations and at the end."""

    def __init__(self, session: Session, checkpoints: CheckpointManager, metrics: MetricsLogger) -> None:
        self._session, self._checkpoints, self._metrics = session, checkpoints, metrics
        self._preemption, self._group = session.preemption, session.group
        self.inside = False  # in the loop body, where the training state is mid-step
        self.reduced: ReducedFlags | None = None  # reduced flags of this loop body's step
        self.bundle: Callable[[], Bundle] | None = None
        self._finished = self._closed = False
        self._step_limit = read_step_limit(os.environ, session.rank_info.attempt)
        self._single_rank = session.group.world.size == 1
        self._has_deadline = session.rank_info.deadline_s is not None
        self._export_s = float(os.environ.get("HEADWAY_EXPORT_S") or EXPORT_S)

    # Agreement of several ranks: each contributes its flags, and all act on the reduced ones

    def flags(self, *, stepped: bool) -> StepFlags:
        """Return this rank's flags. `stepped`: an earlier update of this loop body has counted its step already."""
        first = self._session.is_first
        names, metrics = self._metrics.piggyback
        step = self._checkpoints.position.step + (not stepped)
        return StepFlags(
            stop=self._preemption.stop_requested,
            budget=first and self._over_budget(),
            save=first and self._checkpoints.due(step),
            names=names,
            metrics=metrics,
        )

    def after_step(self, *, stepped: bool) -> None:
        """Checkpoint if one is due, or end the run, as all ranks agreed."""
        checkpoints = self._checkpoints
        if self._step_limit is not None:
            self._step_limit.before_checkpoint(checkpoints.position.step)
        if checkpoints.writer.failure is not None:
            self._check_writer()
        if self._single_rank:
            stop, budget = self._preemption.stop_requested, self._has_deadline and self._over_budget()
            save = stepped and checkpoints.due(checkpoints.position.step)
        elif self.reduced is not None:
            stop, budget, save = self.reduced.stop, self.reduced.budget, self.reduced.save
        else:
            stop = budget = save = False
        if stop or budget or save:
            self._checkpoint_and_end(stop=stop, budget=budget)
        if self._step_limit is not None:
            self._end_at_step_limit(self._step_limit)

    def _checkpoint_and_end(self, *, stop: bool, budget: bool) -> None:
        """Take a checkpoint, then end the run if it was stopped or the budget is spent."""
        self._reduce_metrics()
        if not self._checkpoints.snapshot_is_current:
            self._checkpoints.save()
        if stop:
            self._stop()
        if budget:
            self._end_by_budget()

    def after_steps(self) -> None:
        """Snapshot the state after an epoch's last step: the evaluation that follows may be stopped at any moment."""
        self._reduce_metrics()
        self._checkpoints.stage()

    def after_epoch(self, to: int, *, last: bool) -> None:
        self.check_stop()
        self.stop_all(self._group.all_reduce_sums([self.stop_requested])[0])
        position = self._checkpoints.position
        self._checkpoints.writer.discard_staged()
        position.epoch, position.batch, position.passed = to, 0, position.passed + 1
        budget = self._group.broadcast([float(self._over_budget())])[0] > 0 and not last
        if last or budget or self._checkpoints.due_after_epoch:
            self._checkpoints.save(epoch_ended=True)
        if budget:
            self._end_by_budget()

    def check_stop(self) -> None:
        """Abort an evaluation on a stop request or at the end of the budget. A resumed run repeats it from the epoch's
        last step. Several ranks agree on that at their next reduction instead."""
        self._check_writer()
        if self.inside or not self._single_rank:
            return
        if self.stop_requested:
            self.stop_all(1.0)
        if self._over_budget():
            self._checkpoints.writer.write_staged()
            self._end_by_budget()

    @property
    def stop_requested(self) -> float:
        """1.0 if this rank was asked to stop, outside a step. With several ranks the flag is part of a reduction that
        happens anyway: a rank that left alone would block the others, and its checkpoint would lack their parts."""
        return float(self._preemption.stop_requested and not self._preemption.interruptible and not self.inside)

    def stop_all(self, flags: float) -> None:
        """Stop every rank if any of them requested it. `flags` is the sum of `stop_requested` over ranks."""
        if flags > 0:
            self._checkpoints.writer.write_staged()
            self._stop()

    def finish(self, bundle: Bundle | None, model: type[Model] | None = None) -> None:
        checkpoints = self._checkpoints
        if not checkpoints.snapshot_is_current and not checkpoints.unchanged:
            checkpoints.save()
        checkpoints.writer.drain()
        self._check_writer()
        self._preemption.interruptible = True
        if self._preemption.stop_requested:
            raise Stop
        if self._session.is_first and bundle is None and self.bundle is not None:
            self._session.log(f"exporting the best checkpoint (step {checkpoints.load_best()})")
            bundle = self.bundle()
        if self._session.is_first and bundle is None:
            bundle = export.model_bundle(model, self._session)
        if self._session.is_first and bundle is not None:
            self._export(bundle)
        self._metrics.finish()
        self._finished = True
        self._end("finished", "", 0)
        if not self._session.supervised:  # the supervisor and its client report the end themselves
            self._session.log(f"finished at step {checkpoints.position.step}: {self._session.store.url}")

    def close(self) -> None:
        """Write pending metrics and checkpoints within the time left. Runs at exit, whatever the cause."""
        if self._closed:
            return
        self._closed = True
        left = self._preemption.left_s
        self._checkpoints.writer.close(timeout_s=EXPORT_S if left is None else left)
        self._metrics.close()
        if not isinstance(self._checkpoints.writer.failure, LeaseLost):
            try:
                self._metrics.finish()
            except HeadwayError as error:  # the process is ending: nothing more can be done
                log_line(f"the newest metrics could not be written: {error}")
        short_timeout_s = min(5.0, self._preemption.left_s or 5.0)  # the next attempt sends whatever trackers miss now
        self._metrics.close_trackers(
            finished=self._finished, within_s=TRACKERS_S if self._finished else short_timeout_s
        )
        self._session.close(failed=not self._finished)

    def _reduce_metrics(self) -> None:
        if self._group.world.size > 1:
            self._metrics.reduce_now(self._group.all_reduce_metrics, self._checkpoints.position.step)

    def _over_budget(self) -> bool:
        """Whether the last checkpoint and the export need the rest of the budget: at most a fifth of the total."""
        total = self._session.rank_info.deadline_s
        if total is None:
            return False
        margin = min(total / 5, max(RESERVE_BUDGET_S, 2 * self._checkpoints.writer.last_seconds + self._export_s))
        return self._preemption.over_budget(margin)

    def _stop(self) -> NoReturn:
        """Finish the last checkpoint as far as the grace period allows, and exit."""
        left = self._preemption.left_s
        if left is None:  # another rank received the signal
            left = max(1.0, self._session.rank_info.grace_s - RESERVE_S)
        step = self._checkpoints.position.step
        if self._checkpoints.writer.drain(left):
            self._session.log(f"stopped at step {step}; its checkpoint is written")
        else:
            self._session.log(f"stopped at step {step} without a checkpoint of it; the previous checkpoint is kept")
        self._end("stopped", "asked to stop", 143)
        raise Stop

    def _end_by_budget(self) -> NoReturn:
        """Export the best weights so far and exit, because the budget is nearly spent. The checkpoint is committed."""
        checkpoints, session = self._checkpoints, self._session
        session.log(f"the budget is nearly spent: ending at step {checkpoints.position.step}")
        checkpoints.writer.drain()
        if session.is_first and self.bundle is not None:
            session.log(f"exporting the best checkpoint so far (step {checkpoints.load_best()})")
            self._export(self.bundle())
        self._finished = True
        session.event("budget", step=checkpoints.position.step)
        self._end("budget", "the budget is spent", 0)
        raise SystemExit(0)

    def _export(self, bundle: Bundle) -> None:
        self._checkpoints.require_finite()
        export.export(bundle, self._session, log_line)

    def _end_at_step_limit(self, limit: StepLimit) -> None:
        """End the run after the step limit, with a checkpoint."""
        checkpoints = self._checkpoints
        if not limit.after_step(checkpoints.position.step, checkpoints.writer.drain):
            return
        self._reduce_metrics()
        if not checkpoints.snapshot_is_current:
            checkpoints.save()
        checkpoints.writer.drain()
        self._check_writer()
        self._finished = True
        self._end("finished", "the steps asked for are done", 0)
        raise SystemExit(0)

    def _end(self, state: str, reason: str, code: int) -> None:
        """Write the `ended` event. Under a supervisor, the supervisor writes it."""
        if not self._session.rank_info.supervised:
            self._session.event("ended", state=state, reason=reason, exit_code=code)

    def _check_writer(self) -> None:
        failure = self._checkpoints.writer.failure
        if failure is not None:
            raise failure
