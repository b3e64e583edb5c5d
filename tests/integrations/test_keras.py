"""The backup of Keras: replaced in one step, so that a kill at any moment leaves a whole one. Keras is not needed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.integrations import keras, session


class Model:
    """As much of a Keras model as the callback uses."""

    optimizer = None

    def __init__(self, weights: str = "") -> None:
        self.weights = weights

    def save_weights(self, path: str) -> None:
        Path(path).write_text(self.weights)

    def load_weights(self, path: str) -> None:
        self.weights = Path(path).read_text()


def callback(folder: Path, model: Model, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Any:
    said: list[str] = []
    now = SimpleNamespace(world=1, say=said.append, said=said, **more)
    monkeypatch.setattr(session, "current", lambda: now)
    made = keras._Callback()
    made.folder, made.model, made.params = str(folder), model, {"steps": 2}
    made.batches = 4
    return made, now


def test_a_backup_is_restored_and_replaces_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saving, _ = callback(tmp_path, Model("first"), monkeypatch)
    saving._save(1)
    saving.model.weights, saving.batches = "second", 6
    saving._save(3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["batch-6.weights.h5", "state.json"]
    restoring, now = callback(tmp_path, Model(), monkeypatch)
    restoring._restore(now)
    assert (restoring.model.weights, restoring.epoch, restoring.batches) == ("second", 3, 6)
    assert "continues with epoch 4" in now.said[0]


def test_a_kill_while_the_backup_is_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving, _ = callback(tmp_path, Model("first"), monkeypatch)
    saving._save(1)
    saving.model.weights, saving.batches = "second", 6

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(json, "dump", killed)
        with pytest.raises(KeyboardInterrupt):
            saving._save(3)
    restoring, now = callback(tmp_path, Model(), monkeypatch)
    restoring._restore(now)
    assert (restoring.model.weights, restoring.epoch) == ("first", 1)
