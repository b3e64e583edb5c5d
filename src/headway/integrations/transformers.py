"""Hugging Face Trainer: save and end on SIGTERM and near the budget's end, resume, report steps and metrics."""

import functools
import os
import sys
from typing import Any

from . import session
from .session import safely

NAME = "Hugging Face Trainer"
_STATE = "trainer_state.json"  # the Trainer writes it last: a checkpoint without it is incomplete


def HeadwayCallback() -> Any:
    """Make the callback that connects a Trainer to Headway; without a run of Headway it does nothing.

    `headway run` adds it to every Trainer by itself. Name it in a program that starts Python with `-I` or `-E`, or in
    which you want to see it.

    Returns:
        A `transformers.TrainerCallback`, to be passed to `Trainer(callbacks=[…])`.

    Raises:
        ImportError: `transformers` is not installed.

    Example:
        >>> from headway.integrations.transformers import HeadwayCallback
        >>> trainer = Trainer(model, args, train_dataset=data, callbacks=[HeadwayCallback()])  # doctest: +SKIP
    """
    from importlib import import_module

    patch(import_module("transformers.trainer"))
    return _make_callback()


def patch(module: Any) -> None:
    """Patch the Trainer class of `transformers.trainer`."""
    trainer = module.Trainer
    if getattr(trainer, "headway_patched", False):
        return
    init, train = trainer.__init__, trainer.train

    @functools.wraps(init)
    def patched_init(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        _add_callback(self)

    @functools.wraps(train)
    def patched_train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        if resume_from_checkpoint is None and kwargs.get("trial") is None:
            resume_from_checkpoint = _checkpoint_to_resume(self)
        return train(self, resume_from_checkpoint, *args, **kwargs)

    trainer.__init__, trainer.train, trainer.headway_patched = patched_init, patched_train, True


@safely(NAME)
def _add_callback(trainer: Any) -> None:
    if not any(getattr(callback, "is_headway", False) for callback in trainer.callback_handler.callbacks):
        trainer.add_callback(_make_callback())


@safely(NAME)
def _checkpoint_to_resume(trainer: Any) -> Any:
    """Return this run's last complete checkpoint in the output folder, or None to start from the beginning."""
    now, folder = session.current(), os.path.abspath(str(trainer.args.output_dir))
    found = _own_checkpoints(folder)
    if not now.attempt:
        return None
    if not folder.startswith(os.path.abspath(now.code_dir) + os.sep) and not _inside(folder, now.run_dir):
        now.say(f"{NAME}: output_dir {folder} is outside the project's folder: its files are kept on this machine only")
    if now.attempt > 1:
        where = os.path.relpath(found[-1]) if found else ""
        now.say(f"{NAME}: " + (f"continues from {where}" if found else "no checkpoint yet: starts from the beginning"))
    return found[-1] if found else None


def _inside(folder: str, parent: str) -> bool:
    return bool(parent) and folder.startswith(os.path.abspath(parent))


def _own_checkpoints(folder: str) -> Any:
    """Return this run's complete checkpoints, the one with the highest step last."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    steps = sorted(
        int(name[len("checkpoint-") :])
        for name in names
        if name.startswith("checkpoint-") and name[len("checkpoint-") :].isdigit()
    )
    states = [os.path.join(folder, f"checkpoint-{step}", _STATE) for step in steps]
    complete = [path for path in states if os.path.isfile(path) and os.path.getsize(path)]
    return [os.path.dirname(path) for path in session.current().own(complete)]


class _Callback:
    """The methods of the callback. A Trainer takes None as "control is unchanged, or was changed in place"."""

    is_headway = True

    @safely(NAME)
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now = session.current()
        if getattr(args, "enable_jit_checkpoint", False):
            now.say(f"{NAME}: enable_jit_checkpoint is on: it saves on SIGTERM, not Headway")
        else:
            now.start_training(NAME)
        now.continue_curves(state.global_step)
        now.report(state.global_step, state.max_steps)

    @safely(NAME)
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now = session.current()
        epochs = -(-args.num_train_epochs // 1) if args.max_steps <= 0 else None
        now.report(state.global_step, state.max_steps, int(state.epoch or 0), epochs and int(epochs))
        reason = session.all_agree(now.stop_reason(), args.device)
        if reason and not now.stopping:
            now.begin_stop(reason, NAME)
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    @safely(NAME)
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        session.current().metrics(state.global_step, logs or {})

    @safely(NAME)
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now = session.current()
        if now.stopping == session.SIGTERM:
            where = os.path.join(str(args.output_dir), f"checkpoint-{state.global_step}")
            now.exit_stopped(f"{NAME}: saved {where}")

    @safely(NAME)
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        session.current().end_training()


def _make_callback() -> Any:
    base = sys.modules["transformers.trainer"].TrainerCallback
    return type("HeadwayCallback", (_Callback, base), {"__module__": __name__})()
