"""The cost of one more rank, run, picture, checkpoint and point, at three sizes, each ten times the one before.

Each line does a piece of Headway's own work with n of something, 10 n and 100 n, in turn, three times. The cost per
item counts: it may fall when more items share a start-up cost, and must not rise. More than 1.5 times that of the
previous size would be superlinear growth, a bug, and is marked **broken promise**.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness import interleave, note

PROMISE = 1.5
Work = Callable[[], object]


def main() -> int:
    broken = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        print("| one more … | in … | costs, of few | of ten times as many | of a hundred times | worst × |")
        print("| --- | --- | ---: | ---: | ---: | ---: |")
        for make in (rank, run, page, picture, checkpoint, point):
            broken += show(make.__doc__ or "", make(Path(folder)))
    return broken


def show(words: str, works: dict[int, Work]) -> int:
    rows = interleave({str(count): work for count, work in works.items()}, 3)
    costs = [row.median / count for row, count in zip(rows, works, strict=True)]
    worst = max(after / before for before, after in pairwise(costs))
    thing, _, doing = words.strip().rstrip(".").partition(": ")
    cells = " | ".join(f"{cost * 1e6:,.1f} µs (of {count:,})" for cost, count in zip(costs, works, strict=True))
    print(f"| {thing} | {doing} | {cells} | {worst:.2f} |", flush=True)
    for cost, count in zip(costs, works, strict=True):
        note(f"one more {thing}: {doing}", f"headway, of {count:,}", cost * 1e6, "µs")
    if worst > PROMISE:
        print(f"\nbroken promise: one more {thing} costs {worst:.1f} × as much among ten times as many\n")
    return int(worst > PROMISE)


def rank(folder: Path) -> dict[int, Work]:
    """rank: a checkpoint committed by rank 0, other ranks' parts lying in memory."""
    import torch

    from benchmarks.scale import Nobody
    from headway.spec.model import Checkpoint
    from headway.storage.memory import MemoryStore
    from headway.training.checkpoint.index import CheckpointIndex
    from headway.training.checkpoint.writer import AsyncCheckpointWriter, CheckpointRequest, RankSlot

    def commit(ranks: int) -> None:
        store, seat = MemoryStore(f"memory://growth-{ranks}"), RankSlot(rank=0, ranks=ranks, attempt=1)
        body = json.dumps({"bytes": 123_456_789, "sha256": "0" * 64}).encode()
        for other in range(1, ranks):
            store.write(f"checkpoints/00000001/{seat.part(other, 0)}.json", body)
        saver = AsyncCheckpointWriter(store, seat, CheckpointIndex(store, Checkpoint()), Nobody(), environment={})
        saver.save(CheckpointRequest(step=1, epoch=0, tree={}), {"w": torch.zeros(8)}, ["w"])
        if not saver.drain():
            raise RuntimeError("not committed")

    return {ranks: lambda ranks=ranks: commit(ranks) for ranks in (80, 800, 8_000)}  # type: ignore[misc]


def run(folder: Path) -> dict[int, Work]:
    """run: a row of the ledger written, all together."""
    from headway.rundir.index import RunIndex, RunRow

    def record(count: int) -> None:
        file = folder / f"ledger-{count}.sqlite"
        file.unlink(missing_ok=True)
        names = [f"run-{number}" for number in range(count)]
        rows = (RunRow(name=name, url=name, target="local", job="j", created=1.0, state="finished") for name in names)
        RunIndex(file).record(*rows)

    return {count: lambda count=count: record(count) for count in (100, 1_000, 10_000)}  # type: ignore[misc]


def page(folder: Path) -> dict[int, Work]:
    """page of runs: every page of the dashboard looked at, one run's share."""
    from benchmarks.ledger import index_of
    from headway.dashboard.runs import RunService

    def leaf(run_index: Any, count: int) -> None:
        board, seen = RunService(run_index), 0  # a new one: nothing is remembered
        while seen < count:
            seen += len(board.runs(offset=seen)["runs"])

    indexes = {count: index_of(folder / f"pages-{count}", count) for count in (100, 1_000, 10_000)}
    return {count: lambda count=count: leaf(indexes[count], count) for count in indexes}  # type: ignore[misc]


def picture(folder: Path) -> dict[int, Work]:
    """picture: prepared at 64 pixels and written to a shard, by one process."""
    import shutil

    from PIL import Image

    from benchmarks.data_prepare import many_pictures, noise
    from headway.data.prepare.pipeline import prepare

    body = io.BytesIO()
    Image.fromarray(noise(72, 96, 0)).save(body, "JPEG", quality=85)

    def made(count: int) -> None:
        shutil.rmtree(folder / f"made-{count}", ignore_errors=True)
        prepare(str(folder / f"pictures-{count}"), str(folder / f"made-{count}"), size=64, workers=1)

    sizes = (100, 1_000, 10_000)
    for count in sizes:
        many_pictures(folder / f"pictures-{count}", count, body.getvalue())
    return {count: lambda count=count: made(count) for count in sizes}  # type: ignore[misc]


def checkpoint(folder: Path) -> dict[int, Work]:
    """checkpoint: kept for good, adopted and looked at by the rule of which may go."""
    from headway.spec.model import Cadence, Checkpoint
    from headway.storage.memory import MemoryStore
    from headway.training.checkpoint.index import CheckpointEntry, CheckpointIndex

    def look(store: Any, count: int) -> None:
        catalogue = CheckpointIndex(store, Checkpoint(every=Cadence(steps=1), keep_last=3))
        catalogue.add_existing([CheckpointEntry(step, 0, (), None, True) for step in range(1, count + 1)])
        catalogue.prune()

    stores = {}
    for count in (30, 300, 3_000):
        stores[count] = MemoryStore(f"memory://growth-kept-{count}")
        for step in range(1, count + 1):
            stores[count].write(f"checkpoints/{step:08d}/manifest.json", b"")
    return {count: lambda count=count: look(stores[count], count) for count in stores}  # type: ignore[misc]


def point(folder: Path) -> dict[int, Work]:
    """point: of three curves, read for the first time."""
    from benchmarks.ledger import curve_of
    from headway.dashboard.views import Metrics

    def read(place: Any, count: int) -> None:
        metrics = Metrics(place)
        metrics.refresh()
        if metrics.curve("loss", points=800)["total"] != count:
            raise RuntimeError("not all points were read")

    places = {count: curve_of(folder / f"curve-{count}", count) for count in (2_000, 20_000, 200_000)}
    return {count: lambda count=count: read(places[count], count) for count in places}  # type: ignore[misc]


if __name__ == "__main__":
    sys.exit(main())
