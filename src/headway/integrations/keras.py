"""Keras 3: keep a backup after an epoch and on SIGTERM, continue from it, report steps and metrics.

Unlike `keras.callbacks.BackupAndRestore` it replaces the backup in one step: a kill at any moment leaves a whole one.
"""

import functools
import inspect
import json
import os
import time
from typing import Any

from . import session
from .session import safely

NAME = "Keras"
_STATE = "state.json"
_MAX_SHARE = 0.1  # of the time, for backups: after short epochs of a large model, some are left out


def HeadwayCallback() -> Any:
    """Make the callback that connects `Model.fit` of Keras 3 to Headway; without a run of Headway it does nothing.

    `headway run` adds it to every `fit` by itself.

    Returns:
        A `keras.callbacks.Callback`.

    Raises:
        ImportError: Keras 3 is not installed.

    Example:
        >>> from headway.integrations.keras import HeadwayCallback
        >>> model.fit(x, y, epochs=3, callbacks=[HeadwayCallback()])  # doctest: +SKIP
    """
    return _make_callback()


def patch(module: Any) -> None:
    """Patch the Model class of Keras 3."""
    model = module.Model
    if getattr(model, "headway_patched", False):
        return
    fit = model.fit
    names = list(inspect.signature(fit).parameters)

    @functools.wraps(fit)
    def patched_fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        added = _with_callback(names, (self, *args), kwargs)
        return fit(*added[0], **added[1]) if added else fit(self, *args, **kwargs)

    model.fit, model.headway_patched = patched_fit, True


@safely(NAME)
def _with_callback(names: Any, args: Any, kwargs: Any) -> Any:
    """Return the arguments of `fit` with our callback added, or None to leave them as they are."""
    position = names.index("callbacks")
    given = args[position] if len(args) > position else kwargs.get("callbacks")
    if not session.current().attempt or hasattr(given, "on_train_begin"):  # a CallbackList is the program's own
        return None
    callbacks = list(given or [])
    if not any(getattr(callback, "is_headway", False) for callback in callbacks):
        callbacks.append(_make_callback(callbacks))
    if len(args) > position:
        return (*args[:position], callbacks, *args[position + 1 :]), kwargs
    return args, {**kwargs, "callbacks": callbacks}


class _Callback:
    """The methods of the callback. `fit` calls are numbered: each has a backup of its own."""

    is_headway = True
    model: Any  # set by Keras, like `params`
    params: Any
    fits = 0
    keeps_own_backup = False  # by the program's own BackupAndRestore

    @safely(NAME)
    def on_train_begin(self, logs: Any = None) -> None:
        now = session.current()
        _Callback.fits += 1
        self.folder = os.path.join(now.run_dir or now.code_dir, "keras-backup", f"fit-{_Callback.fits}")
        self.epoch = self.batches = 0
        self.next_save = 0.0
        now.start_training(NAME)
        if now.world > 1:
            now.say(f"{NAME}: {now.world} processes: Headway keeps no backup of them; use BackupAndRestore")
        elif now.attempt > 1 and not self.keeps_own_backup:
            self._restore(now)
        now.continue_curves(self.batches)

    def _restore(self, now: Any) -> None:
        try:
            with open(os.path.join(self.folder, _STATE)) as file:
                state = json.load(file)
        except (OSError, ValueError):
            now.say(f"{NAME}: no backup yet: starts from the beginning")
            return
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        self.model.load_weights(os.path.join(self.folder, state["weights"]))
        self.model._initial_epoch = self.epoch = state["epoch"]
        # An epoch that was stopped inside is trained again from its first batch.
        self.batches = self.epoch * (self.params.get("steps") or 0) or state["batches"]
        now.say(f"{NAME}: continues with epoch {self.epoch + 1} from the backup after batch {state['batches']}")

    @safely(NAME)
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    @safely(NAME)
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = session.current()
        self.batches += 1
        per_epoch, epochs = self.params.get("steps"), self.params.get("epochs")
        total = per_epoch * epochs if per_epoch and epochs else None
        now.report(self.batches, total, self.epoch, epochs, session.number((logs or {}).get("loss")))
        reason = now.stop_reason()
        if reason and not now.stopping:
            self._stop(now, reason)

    def _stop(self, now: Any, reason: str) -> None:
        now.begin_stop(reason, NAME)
        self._save(self.epoch)
        if reason == session.SIGTERM:
            now.exit_stopped(f"{NAME}: saved a backup in epoch {self.epoch + 1}, after batch {self.batches}")
        self.model.stop_training = True

    @safely(NAME)
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        now = session.current()
        now.metrics(self.batches, logs or {})
        last = epoch + 1 == self.params.get("epochs")
        if not now.stopping and (last or time.monotonic() >= self.next_save):
            self._save(epoch + 1)

    def _save(self, epoch: int) -> None:
        if session.current().world > 1 or self.keeps_own_backup:
            return
        began = time.monotonic()
        os.makedirs(self.folder, exist_ok=True)
        name = f"batch-{self.batches}.weights.h5"
        self.model.save_weights(os.path.join(self.folder, name))
        state = os.path.join(self.folder, _STATE)
        with open(f"{state}.new", "w") as file:
            json.dump({"epoch": epoch, "batches": self.batches, "weights": name}, file)
        os.replace(f"{state}.new", state)
        for other in os.listdir(self.folder):
            if other not in (name, _STATE):
                os.remove(os.path.join(self.folder, other))
        took = time.monotonic() - began
        self.next_save = time.monotonic() + took / _MAX_SHARE

    @safely(NAME)
    def on_train_end(self, logs: Any = None) -> None:
        session.current().end_training()


def _make_callback(others: Any = ()) -> Any:
    from importlib import import_module

    base = import_module("keras").callbacks.Callback
    callback = type("HeadwayCallback", (_Callback, base), {"__module__": __name__})()
    callback.keeps_own_backup = any(type(one).__name__ == "BackupAndRestore" for one in others)
    return callback
