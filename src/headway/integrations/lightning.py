"""Lightning: save and end on SIGTERM and near the budget's end, resume, report steps and metrics."""

import functools
import inspect
import os
import signal
import sys
import zipfile
from typing import Any

from . import session
from .session import safely

NAME = "Lightning"
_CKPT_PATH = 4  # position of `ckpt_path` among the arguments of `Trainer.fit` after self
_MAX_FOLDERS = 20_000
_RUN_FOLDER = ("plan.json", "intent.json")  # files of every run folder
_COPIES = ("workdir", "earlier", "other-nodes")  # Headway's own folders in $HEADWAY_RUN_DIR
_MODULES = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")


def HeadwayCallback() -> Any:
    """Make the callback that connects a Lightning Trainer to Headway; without a run of Headway it does nothing.

    `headway run` adds it to every Trainer by itself.

    Returns:
        A `lightning.pytorch.Callback` (or one of `pytorch_lightning`, if the program has imported that).

    Raises:
        ImportError: neither `lightning` nor `pytorch_lightning` is installed.

    Example:
        >>> from headway.integrations.lightning import HeadwayCallback
        >>> trainer = Trainer(max_epochs=3, callbacks=[HeadwayCallback()])  # doctest: +SKIP
    """
    from importlib import import_module

    name = next((name for name in _MODULES if name in sys.modules), _MODULES[0])
    module = import_module(name)
    patch(module)
    return _make_callback(module)


def patch(module: Any) -> None:
    """Patch the Trainer class of `lightning.pytorch` or `pytorch_lightning`."""
    trainer = module.Trainer
    if getattr(trainer, "headway_patched", False):
        return
    init, fit = trainer.__init__, trainer.fit

    @functools.wraps(init)
    def patched_init(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        _add_callback(self, module)

    @functools.wraps(fit)
    def patched_fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) <= _CKPT_PATH and kwargs.get("ckpt_path") is None:
            found = _checkpoint_to_resume(self)
            if found:
                kwargs["ckpt_path"] = found
                # The file is this run's own: Lightning's safe mode refuses most hyperparameters and callbacks' states.
                if "weights_only" in inspect.signature(fit).parameters and kwargs.get("weights_only") is None:
                    kwargs["weights_only"] = False
        return fit(self, *args, **kwargs)

    trainer.__init__, trainer.fit, trainer.headway_patched = patched_init, patched_fit, True


@safely(NAME)
def _add_callback(trainer: Any, module: Any) -> None:
    if not any(getattr(callback, "is_headway", False) for callback in trainer.callbacks):
        trainer.callbacks.insert(0, _make_callback(module))  # those that save checkpoints must stay last


@safely(NAME)
def _checkpoint_to_resume(trainer: Any) -> Any:
    """Return this run's newest complete checkpoint, or None to start from the beginning."""
    now = session.current()
    if not now.attempt:
        return None
    found = sorted(now.own(_checkpoints(trainer)), key=os.path.getmtime)
    if now.attempt > 1:
        where = os.path.relpath(found[-1]) if found else ""
        now.say(f"{NAME}: " + (f"continues from {where}" if found else "no checkpoint yet: starts from the beginning"))
    return found[-1] if found else None


def _checkpoints(trainer: Any) -> Any:
    run_dir = session.current().run_dir
    folders = {os.path.abspath(str(trainer.default_root_dir)), *([os.path.abspath(run_dir)] if run_dir else [])}
    for callback in trainer.checkpoint_callbacks:
        if getattr(callback, "dirpath", None):
            folders.add(os.path.abspath(str(callback.dirpath)))
    paths = {path for folder in folders for path in _files(folder)}
    return sorted(path for path in paths if _resumable(path))


def _files(folder: str) -> Any:
    for visited, (parent, folders, files) in enumerate(os.walk(folder)):
        folders[:] = [name for name in folders if not _is_passed_over(parent, name)]
        yield from (os.path.join(parent, name) for name in files if name.endswith(".ckpt"))
        if visited >= _MAX_FOLDERS:
            session.current().say(f"{NAME}: only the first {visited} folders of {folder} were searched for checkpoints")
            return


def _is_passed_over(parent: str, name: str) -> bool:
    """Whether a folder has no checkpoints of the program: a run folder has Headway's copies, also of other runs."""
    if name.startswith(".") or name == "site-packages":
        return True
    run_dir = session.current().run_dir
    if run_dir and parent == os.path.abspath(run_dir) and name in _COPIES:
        return True
    return all(os.path.isfile(os.path.join(parent, name, file)) for file in _RUN_FOLDER)


def _resumable(path: str) -> bool:
    """Whether a checkpoint is complete (a file cut off has no directory at its end) and has more than weights."""
    try:
        with zipfile.ZipFile(path) as archive:
            state = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            return b"optimizer_states" in archive.read(state)
    except (OSError, zipfile.BadZipFile, StopIteration):
        return False


class _Callback:
    """The methods of the callback."""

    is_headway = True

    @safely(NAME)
    def on_train_start(self, trainer: Any, module: Any) -> None:
        # Lightning's own handler ends the training without a save.
        session.current().start_training(NAME, replaces=_lightning_handler())
        session.current().continue_curves(trainer.global_step)

    @safely(NAME)
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        now = session.current()
        total = trainer.estimated_stepping_batches
        epochs = trainer.max_epochs if (trainer.max_epochs or -1) > 0 else None
        now.report(trainer.global_step, int(total) if total != float("inf") else None, trainer.current_epoch, epochs)
        if trainer.log_every_n_steps and trainer.global_step % trainer.log_every_n_steps == 0:
            now.metrics(trainer.global_step, trainer.logged_metrics)
        reason = session.all_agree(now.stop_reason(), trainer.strategy.root_device)
        if not reason or now.stopping:
            return
        now.begin_stop(reason, NAME)
        where = _save(trainer)
        if reason == session.SIGTERM:
            now.exit_stopped(f"{NAME}: saved {where}")
        trainer.should_stop = True

    @safely(NAME)
    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            session.current().metrics(trainer.global_step, trainer.callback_metrics)

    @safely(NAME)
    def on_train_end(self, trainer: Any, module: Any) -> None:
        session.current().end_training()


def _save(trainer: Any) -> str:
    callback = trainer.checkpoint_callback
    folder = getattr(callback, "dirpath", None) or trainer.default_root_dir
    path = os.path.join(str(folder), f"headway-step={trainer.global_step}.ckpt")
    trainer.save_checkpoint(path)  # on all ranks: a sharded strategy needs them
    return os.path.relpath(path)


def _lightning_handler() -> Any:
    present = signal.getsignal(signal.SIGTERM)
    handlers = getattr(present, "signal_handlers", None)  # Lightning calls the program's handlers beside its own
    if handlers is None or not type(present).__module__.startswith(("lightning", "pytorch_lightning")):
        return None
    others = [one for one in handlers if not str(getattr(one, "__module__", "")).startswith(_LIGHTNING)]
    return None if others else present


_LIGHTNING = ("lightning", "pytorch_lightning")


def _make_callback(module: Any) -> Any:
    base = module.Callback
    return type("HeadwayCallback", (_Callback, base), {"__module__": __name__})()
