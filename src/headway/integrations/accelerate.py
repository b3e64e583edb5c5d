"""Accelerate: continue from the newest saved state, save on SIGTERM, at an interval and near the budget's end."""

import os
import shutil
import time
from typing import Any

from . import session

NAME = "Accelerate"
_PREFIX, _COMPLETE = "step-", "headway-complete"


class Progress:
    """Where a training loop of Accelerate is: `step` is the number of finished steps, over all attempts."""

    def __init__(self, accelerator: Any, folder: str, save_every_s: float, keep: int) -> None:
        self.step = 0
        self._accelerator, self._folder, self._save_every_s, self._keep = accelerator, folder, save_every_s, keep
        self._saved_at = time.monotonic()
        self._session = session.current()

    def step_done(self, steps: Any = None, **metrics: Any) -> bool:
        """Count a finished step; save if it is time, and end the program after a save if it was asked to stop.

        Args:
            steps: total number of steps of the training, for the progress display.
            metrics: numbers to record for this step, such as `loss=loss.item()`.

        Returns:
            False if the budget is nearly spent: a state was saved, and the loop should end.

        Raises:
            SystemExit: with code 143, after the state was saved because the run was asked to stop.

        Example:
            >>> if not progress.step_done(loss=loss.item()):  # doctest: +SKIP
            ...     break
        """
        now = self._session
        self.step += 1
        now.report(self.step, steps, loss=session.number(metrics.get("loss")))
        now.metrics(self.step, metrics)
        reason = session.all_agree(now.stop_reason(), self._accelerator.device)
        if reason and not now.stopping:
            now.begin_stop(reason, NAME)
            where = self.save()
            if reason == session.SIGTERM:
                now.exit_stopped(f"{NAME}: saved {where}")
        elif self._accelerator.num_processes == 1 and time.monotonic() - self._saved_at >= self._save_every_s:
            self.save()
        return not now.stopping

    def save(self) -> str:
        """Save the state of everything that was prepared, and delete the oldest beyond the number to keep.

        Returns:
            The folder of the state. Call it on all processes.

        Example:
            >>> progress.save()  # doctest: +SKIP
            'accelerate-state/step-300'
        """
        where = os.path.join(self._folder, f"{_PREFIX}{self.step}")
        self._accelerator.save_state(where)
        self._accelerator.wait_for_everyone()
        if self._accelerator.is_main_process:
            with open(os.path.join(where, _COMPLETE), "w"):
                pass
            for old in _states(self._folder)[: -self._keep]:
                shutil.rmtree(old, ignore_errors=True)
        self._saved_at = time.monotonic()
        return where


def resume(
    accelerator: Any, folder: str = "accelerate-state", *, save_every_s: float = 300.0, keep: int = 2
) -> Progress:
    """Load the newest state that an earlier attempt saved, and return where the loop continues.

    Args:
        accelerator: the `accelerate.Accelerator`, after its `prepare`.
        folder: where states are saved; inside the project's folder, so that Headway keeps and restores it.
        save_every_s: seconds between saves, in a program of one process. With several, call `save` at a fixed step.
        keep: number of newest states to keep.

    Returns:
        The progress; its `step` is 0 if there is nothing to continue from.

    Raises:
        Exception: whatever `accelerator.load_state` raises for a state that does not fit the prepared objects.

    Example:
        >>> progress = resume(accelerator)  # doctest: +SKIP
        >>> loader = accelerator.skip_first_batches(loader, progress.step % len(loader))  # doctest: +SKIP
    """
    progress = Progress(accelerator, folder, save_every_s, keep)
    now = session.current()
    marks = [os.path.join(path, _COMPLETE) for path in _states(folder)]
    found = [os.path.dirname(path) for path in now.own(marks)]
    if found:
        accelerator.load_state(found[-1])
        progress.step = int(os.path.basename(found[-1])[len(_PREFIX) :])
    if now.attempt > 1:
        text = f"continues from {found[-1]}" if found else "no saved state yet: starts from the beginning"
        now.say(f"{NAME}: {text}")
    now.start_training(NAME)
    now.continue_curves(progress.step)
    return progress


def _states(folder: str) -> Any:
    """Return the complete states, the one with the highest step last."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    steps = sorted(int(name[len(_PREFIX) :]) for name in names if name[len(_PREFIX) :].isdigit())
    paths = [os.path.join(folder, f"{_PREFIX}{step}") for step in steps]
    return [path for path in paths if os.path.exists(os.path.join(path, _COMPLETE))]
