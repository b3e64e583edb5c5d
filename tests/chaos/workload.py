"""The training that is killed: small, and with everything that breaks exactness elsewhere.

Dropout, batch normalisation, augmentation, a loader process, an incomplete last batch, an unused parameter, a schedule,
several gradient buckets, an evaluation that chooses the best, an export of the best.
"""

from __future__ import annotations

from tests.chaos.board import MAIN, SAVER, Board

BOARD = Board.mine()
BOARD.mark("import")

import json  # noqa: E402  what follows is the part of a start that takes long, and is killed in too
import os  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import headway  # noqa: E402
from headway.training import Loader  # noqa: E402
from headway.training.distributed import grad_sync  # noqa: E402
from tests.chaos.workload_facts import BATCH, EPOCHS, FILES, ITEMS, STEPS_AN_EPOCH  # noqa: E402

PAST = {"take": "took", "write": "wrote", "remove": "removed"}


class Points:
    """Drawn points, with noise that depends on the epoch."""

    fingerprint = "points"

    def __init__(self, count: int) -> None:
        self._x = np.random.Generator(np.random.Philox(key=5)).normal(size=(count, 12)).astype("float32")

    def __len__(self) -> int:
        return len(self._x)

    def item(self, index: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        x = self._x[index] + rng.normal(scale=0.1, size=12).astype("float32")
        return torch.from_numpy(x), torch.tensor(self._x[index].sum())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(12, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 48), nn.Dropout(0.1)
        )
        self.head = nn.Linear(48, 1)
        self.never_used = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)).squeeze(-1)


class Exported:
    """The best weights, in three files that take their time."""

    def __init__(self, model: nn.Module, pause_s: float) -> None:
        self._model, self._pause_s = model, pause_s

    def write(self, folder: Path) -> None:
        BOARD.mark("export")
        (folder / FILES[0]).write_text("# Points\n")
        time.sleep(self._pause_s)
        (folder / FILES[1]).write_text(json.dumps({"width": 48}))
        time.sleep(self._pause_s)
        save_file({name: value.contiguous() for name, value in self._model.state_dict().items()}, folder / FILES[2])


def main() -> None:
    grad_sync.BUCKET_BYTES = 4000  # four buckets for this model
    BOARD.mark("start")
    run = headway.start()
    _watch(run)
    print(f"the secret is {os.environ.get('CHAOS_SECRET', 'none')}", flush=True)
    epochs = int(run.config.get("epochs", EPOCHS))
    pause_s = float(run.config.get("pause_s", 0.005))
    feed = Loader(Points(ITEMS), BATCH, workers=int(run.config.get("workers", 1)))
    model = run.place(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * STEPS_AN_EPOCH)
    run.on_export(lambda: Exported(model, pause_s))
    BOARD.mark("restore")
    run.restore(model=model, optimizer=optimizer, schedule=schedule, data=feed)
    for _ in run.epochs(epochs):
        model.train()
        BOARD.mark("data")
        for x, y in run.steps(feed):
            BOARD.mark("forward")
            time.sleep(pause_s)
            loss = ((model(x) - y) ** 2).sum()
            BOARD.mark("step")
            weight = 1.3 * len(x)  # no power of two: whether it divides sooner or later then shows in the bits
            run.step(optimizer, loss_sum=loss, weight=weight, clip=1.0, scheduler=schedule)
            BOARD.mark("log")
            run.log(loss=loss / len(x))
            BOARD.mark("between")
        BOARD.mark("evaluate")
        error = evaluate(run, model, pause_s)
        BOARD.mark("score")
        run.score({"error": error}, best="error", higher=False)
        BOARD.mark("epoch_end")
    BOARD.mark("finish")
    run.finish()
    BOARD.mark("done")


def evaluate(run: headway.Run, model: nn.Module, pause_s: float) -> float:
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for x, y in run.evaluating(Loader(Points(24), 4, shuffle=False)):
            time.sleep(pause_s)
            total += float(((model(x) - y) ** 2).sum())
            count += len(x)
    sums = run.total({"error": total, "count": count})
    return float(sums["error"] / sums["count"])


def _watch(run: headway.Run) -> None:
    """Have every snapshot, write and removal marked on the board while it lasts."""
    saver, store = run._checkpoints.writer, run._session.store
    saver._copy = _marked(saver._copy, "take", lambda *_: "snapshot")  # type: ignore[method-assign]
    store.write = _marked(store.write, "write", lambda key, *_: kind_of(key))  # type: ignore[method-assign]
    store.delete = _marked(store.delete, "remove", lambda key, *_: kind_of(key))  # type: ignore[method-assign]


def _marked(call: Callable[..., Any], verb: str, name: Callable[..., str]) -> Callable[..., Any]:
    def marked(*args: Any, **options: Any) -> Any:
        slot = MAIN if threading.current_thread() is threading.main_thread() else SAVER
        what = name(*args)
        BOARD.mark(f"{verb} {what}", slot)
        result = call(*args, **options)
        BOARD.mark(f"{PAST[verb]} {what}", slot)
        return result

    return marked


def kind_of(key: str) -> str:
    """What an object of the run folder is, in one word."""
    folder, _, name = key.rpartition("/")
    if name in ("manifest.json", "last.json"):
        return name.removesuffix(".json")
    if name.endswith(".safetensors"):
        return "weights" if folder == "export" else "part"
    if "state" in name:
        return "state"
    if folder == "checkpoints":
        return "pointer"
    return "part record" if folder.startswith("checkpoints/") else folder.partition("/")[0]


if __name__ == "__main__":
    sys.exit(main())
