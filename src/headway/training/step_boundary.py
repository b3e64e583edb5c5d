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
from headway.training import export
from headway.training.checkpoint.manager import CheckpointManager
from headway.training.context import Session, say
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
        self._death: threading.Timer | None = None

    def before_checkpoint(self, step: int) -> None:
        """Kill the process if the step to die in is already over: late, but before its checkpoint is written."""
        if self._death is not None and self._die_after is not None and step > self._die_after:
            _die()

    def after_step(self, step: int, commit: Callable[[], object]) -> bool:
        """Arm the kill timer if it is due; return whether this was the last step."""
        now = time.monotonic()
        seconds, self._before = now - self._before, now
        if self._die_after is not None and step >= self._die_after and self._death is None:
            commit()
            # The operating system's randomness, so that the run's generators are not advanced.
            self._death = threading.Timer(random.SystemRandom().random() * seconds, _die)
            self._death.start()
        return self._limit is not None and step >= self._limit


def stretch(env: Mapping[str, str], attempt: int) -> StepLimit | None:
    """Read the limits from the environment. Returns None if there are none, which costs nothing."""
    limit, die_after = _count(env, STEP_LIMIT), _count(env, DIE_AFTER_STEP) if attempt <= 1 else None
    return None if limit is None and die_after is None else StepLimit(limit, die_after)


def _count(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    if text and (not text.isdigit() or int(text) < 1):
        raise BadInput(f"{name}={text} is not a number of steps", where=name)
    return int(text) if text else None


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


TRACKERS_S = 60.0  # for trackers to upload the last metrics of a finished run; nothing else waits for them
EXPORT_S = 30.0  # estimate for the export, if no earlier run measured it (HEADWAY_EXPORT_S)
RESERVE_BUDGET_S = 60.0  # the least part of the budget reserved for the last checkpoint and the export


class StepBoundary:
    """Decides what happens between steps, during evaluations and at the end."""

    def __init__(self, session: Session, checkpoints: CheckpointManager, metrics: MetricsLogger) -> None:
        self._session, self._checkpoints, self._metrics = session, checkpoints, metrics
        self._stopping, self._group = session.stopping, session.group
        self.inside = False  # in the loop body, where the training state is mid-step
        self.agreed: ReducedFlags | None = None  # reduced flags of this loop body's step
        self.bundle: Callable[[], Bundle] | None = None
        self._finished = self._closed = False
        self._stretch = stretch(os.environ, session.identity.attempt)
        self._alone = session.group.world.size == 1
        self._limited = session.identity.deadline_s is not None
        self._export_s = float(os.environ.get("HEADWAY_EXPORT_S") or EXPORT_S)

    # Agreement of several ranks: each contributes its flags, and all act on the reduced ones

    def flags(self) -> StepFlags:
        first = self._session.first
        names, metrics = self._metrics.piggyback
        step = self._checkpoints.position.step + 1
        return StepFlags(
            stop=self._stopping.asked,
            budget=first and self._over_budget(),
            save=first and self._checkpoints.due(step),
            names=names,
            metrics=metrics,
        )

    def after_step(self, *, stepped: bool) -> None:
        """Checkpoint if one is due, or end the run, as all ranks agreed."""
        checkpoints = self._checkpoints
        if self._stretch is not None:
            self._stretch.before_checkpoint(checkpoints.position.step)
        if checkpoints.saver.fenced is not None:
            self._check_fence()
        if self._alone:
            stop, budget = self._stopping.asked, self._limited and self._over_budget()
            save = stepped and checkpoints.due(checkpoints.position.step)
        elif self.agreed is not None:
            stop, budget, save = self.agreed.stop, self.agreed.budget, self.agreed.save
        else:
            stop = budget = save = False
        if stop or budget or save:
            self._act(stop=stop, budget=budget)
        if self._stretch is not None:
            self._end_of_stretch(self._stretch)

    def _act(self, *, stop: bool, budget: bool) -> None:
        """Take a checkpoint, then end the run if it was stopped or the budget is spent."""
        self._settle()
        if not self._checkpoints.taken_here:
            self._checkpoints.take()
        if stop:
            self._leave()
        if budget:
            self._end_by_budget()

    def after_steps(self) -> None:
        """Snapshot the state after an epoch's last step: the evaluation that follows may be stopped at any moment."""
        self._settle()
        self._checkpoints.hold()

    def after_epoch(self, to: int, *, last: bool) -> None:
        self.heed()
        self.stop_all(self._group.sums([self.stop_requested])[0])
        position = self._checkpoints.position
        self._checkpoints.saver.release()
        position.epoch, position.batch, position.passed = to, 0, position.passed + 1
        budget = self._group.broadcast([float(self._over_budget())])[0] > 0 and not last
        if last or budget or self._checkpoints.due_after_epoch:
            self._checkpoints.take(epoch_ended=True)
        if budget:
            self._end_by_budget()

    def heed(self) -> None:
        """Abort an evaluation on a stop request or at the end of the budget. A resumed run repeats it from the epoch's
        last step. Several ranks agree on that at their next reduction instead."""
        self._check_fence()
        if self.inside or not self._alone:
            return
        if self.stop_requested:
            self.stop_all(1.0)
        if self._over_budget():
            self._checkpoints.saver.write_snapshot()
            self._end_by_budget()

    @property
    def stop_requested(self) -> float:
        """1.0 if this rank was asked to stop, outside a step. With several ranks the flag is part of a reduction that
        happens anyway: a rank that left alone would block the others, and its checkpoint would lack their parts."""
        return float(self._stopping.asked and not self._stopping.interruptible and not self.inside)

    def stop_all(self, flags: float) -> None:
        """Stop every rank if any of them requested it. `flags` is the sum of `stop_requested` over ranks."""
        if flags > 0:
            self._checkpoints.saver.write_snapshot()
            self._leave()

    def finish(self, bundle: Bundle | None) -> None:
        checkpoints = self._checkpoints
        if not checkpoints.taken_here and not checkpoints.fresh:
            checkpoints.take()
        checkpoints.saver.drain()
        self._check_fence()
        self._stopping.interruptible = True
        if self._stopping.asked:
            raise Stop
        if self._session.first and bundle is None and self.bundle is not None:
            self._session.say(f"exporting the best checkpoint (step {checkpoints.load_best()})")
            bundle = self.bundle()
        if self._session.first and bundle is not None:
            self._export(bundle)
        self._metrics.finish()
        self._finished = True
        self._end("finished", "", 0)
        if not self._session.supervised:  # the supervisor and its client report the end themselves
            self._session.say(f"finished at step {checkpoints.position.step}: {self._session.store.url}")

    def close(self) -> None:
        """Write pending metrics and checkpoints within the time left. Runs at exit, whatever the cause."""
        if self._closed:
            return
        self._closed = True
        left = self._stopping.left_s
        self._checkpoints.saver.close(timeout_s=EXPORT_S if left is None else left)
        self._metrics.close()
        if self._checkpoints.saver.fenced is None:
            try:
                self._metrics.finish()
            except HeadwayError as error:  # the process is ending: nothing more can be done
                say(f"the newest metrics could not be written: {error}")
        hurry = min(5.0, self._stopping.left_s or 5.0)  # the next attempt sends whatever trackers miss now
        self._metrics.close_trackers(finished=self._finished, within_s=TRACKERS_S if self._finished else hurry)
        self._session.close(failed=not self._finished)

    def _settle(self) -> None:
        if self._group.world.size > 1:
            self._metrics.settle(self._group.exchange, self._checkpoints.position.step)

    def _over_budget(self) -> bool:
        """Whether the last checkpoint and the export need the rest of the budget: at most a fifth of the total."""
        total = self._session.identity.deadline_s
        if total is None:
            return False
        margin = min(total / 5, max(RESERVE_BUDGET_S, 2 * self._checkpoints.saver.last_seconds + self._export_s))
        return self._stopping.over_budget(margin)

    def _leave(self) -> NoReturn:
        """Finish the last checkpoint as far as the grace period allows, and exit."""
        left = self._stopping.left_s
        if left is None:  # another rank received the signal
            left = max(1.0, self._session.identity.grace_s - RESERVE_S)
        step = self._checkpoints.position.step
        if self._checkpoints.saver.drain(left):
            self._session.say(f"stopped at step {step}; its checkpoint is written")
        else:
            self._session.say(f"stopped at step {step} without a checkpoint of it; the previous checkpoint is kept")
        self._end("stopped", "asked to stop", 143)
        raise Stop

    def _end_by_budget(self) -> NoReturn:
        """Export the best weights so far and exit, because the budget is nearly spent. The checkpoint is committed."""
        checkpoints, session = self._checkpoints, self._session
        session.say(f"the budget is nearly spent: ending at step {checkpoints.position.step}")
        checkpoints.saver.drain()
        if session.first and self.bundle is not None:
            session.say(f"exporting the best checkpoint so far (step {checkpoints.load_best()})")
            self._export(self.bundle())
        self._finished = True
        session.event("budget", step=checkpoints.position.step)
        self._end("budget", "the budget is spent", 0)
        raise SystemExit(0)

    def _export(self, bundle: Bundle) -> None:
        self._checkpoints.require_finite()
        export.export(bundle, self._session, say)

    def _end_of_stretch(self, short: StepLimit) -> None:
        """End the run after the step limit, with a checkpoint."""
        checkpoints = self._checkpoints
        if not short.after_step(checkpoints.position.step, checkpoints.saver.drain):
            return
        self._settle()
        if not checkpoints.taken_here:
            checkpoints.take()
        checkpoints.saver.drain()
        self._check_fence()
        self._finished = True
        self._end("finished", "the steps asked for are done", 0)
        raise SystemExit(0)

    def _end(self, state: str, reason: str, code: int) -> None:
        """Write the `ended` event. Under a supervisor, the supervisor writes it."""
        if not self._session.identity.supervised:
            self._session.event("ended", state=state, reason=reason, exit_code=code)

    def _check_fence(self) -> None:
        lost = self._checkpoints.saver.fenced
        if lost is not None:
            raise lost
