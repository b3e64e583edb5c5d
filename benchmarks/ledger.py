"""The dashboard's speed: a page of 10,000 runs against one of 100, a curve of 1,000,000 points against one of 10,000.

Also the same curves of 20,000 points, read by TensorBoard's own reader if it is installed.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.harness import Row as Measured
from benchmarks.harness import interleave, note, show
from headway.dashboard.runs import RunService
from headway.dashboard.views import Metrics
from headway.rundir.index import RunIndex, RunRow
from headway.rundir.layout import RunFolder, SegmentWriter
from headway.storage import open_store

FEW_RUNS, MANY_RUNS = 100, 10_000
FEW_POINTS, SOME_POINTS, MANY_POINTS = 10_000, 20_000, 1_000_000
LIMIT = "the limit"
A_SEGMENT = 5_000  # points: about what a minute of quick steps makes


def main() -> int:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        _runs(Path(folder))
        _points(Path(folder))
        _against_tensorboard(Path(folder))
    return 0


def _runs(folder: Path) -> None:
    few, many = (index_of(folder / f"{count}", count) for count in (FEW_RUNS, MANY_RUNS))
    fresh: dict[str, Callable[[], object]] = {
        "100 runs: first page": lambda: RunService(few).runs(),
        "10,000 runs: first page": lambda: RunService(many).runs(),
        "10,000 runs: page 50": lambda: RunService(many).runs(offset=5_000),
        "10,000 runs: search": lambda: RunService(many).runs(query="run-77 finished"),
    }
    board = RunService(many)
    fresh["10,000 runs: first page again"] = board.runs
    page = [folder / f"{MANY_RUNS}" / "runs" / f"run-{number}" for number in range(len(board.runs()["runs"]))]
    files = [place / name for place in page for name in ("progress.json", "checkpoints/last.json")]
    fresh[LIMIT] = lambda: [json.loads(file.read_bytes()) for file in files]
    found = interleave(fresh, 9)
    print(show(found, "100 runs: first page"), flush=True)
    _noted("the dashboard's runs", found, "the files of a page's runs read")


def _noted(group: str, rows: list[Measured], limit: str) -> None:
    floor = next(row.median for row in rows if row.name == LIMIT) * 1e3
    for row in rows:
        if row.name != LIMIT:
            note(group, f"headway, {row.name}", row.median * 1e3, "ms", limit=limit, floor=floor)


def index_of(folder: Path, count: int) -> RunIndex:
    """Runs with as much in their folders as a page of them looks at."""
    rows = []
    for number in range(count):
        place = folder / "runs" / f"run-{number}"
        (place / "checkpoints").mkdir(parents=True)
        (place / "progress.json").write_text(json.dumps({"step": number, "steps": count, "epoch": 1, "epochs": 2}))
        kept = {"kept": [{"step": 1, "score": 0.5, "names": ["phase1_best"]}], "step": 1, "steps": [1]}
        (place / "checkpoints" / "last.json").write_text(json.dumps(kept))
        rows.append(RunRow(name=place.name, url=str(place), target="local", job="j", created=number, state="finished"))
    run_index = RunIndex(folder / "ledger.sqlite")
    run_index.record(*rows)
    return run_index


def _points(folder: Path) -> None:
    many = curve_of(folder / "many", MANY_POINTS)
    few = Metrics(curve_of(folder / "few", FEW_POINTS))
    few.refresh()
    began = time.perf_counter()
    metrics = Metrics(many)
    metrics.refresh()
    print(f"\n1,000,000 points of 3 curves read for the first time in {time.perf_counter() - began:.1f} s\n")
    every = np.arange(float(MANY_POINTS))
    cases: dict[str, Callable[[], object]] = {
        "10,000 points: all": lambda: few.curve("loss", points=800),
        "1,000,000 points: all": lambda: metrics.curve("loss", points=800),
        "1,000,000 points: a hundredth": lambda: metrics.curve("loss", points=800, low=5e5, high=5.1e5),
        "1,000,000 points: is there more?": metrics.refresh,
        LIMIT: lambda: every.min() + every.max(),
    }
    found = interleave(cases, 9)
    print(show(found, "10,000 points: all"), flush=True)
    whole = [row for row in found if row.name in ("1,000,000 points: all", LIMIT)]
    _noted("a curve of the dashboard", whole, "one look at a million numbers")


def curve_of(folder: Path, points: int) -> RunFolder:
    store = open_store(str(folder))
    writer = SegmentWriter(store, "metrics", 1)
    for step in range(1, points + 1):
        writer.add(json.dumps(_record(step)))
        if step % A_SEGMENT == 0:
            writer.flush()
    writer.flush()
    return RunFolder(store)


def _record(step: int) -> dict[str, float]:
    return {"step": step, "epoch": 0, "time": step / 10, "loss": 10 / step, "lr": 1e-3, "grad_norm": step % 7 / 3}


def _against_tensorboard(folder: Path) -> None:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboardX import SummaryWriter
    except ImportError:
        print("\nTensorBoard is not installed: not compared")
        return
    some = curve_of(folder / "some", SOME_POINTS)
    with SummaryWriter(str(folder / "board")) as writer:
        for step in range(1, SOME_POINTS + 1):
            for name in ("loss", "lr", "grad_norm"):
                writer.add_scalar(name, _record(step)[name], step)

    def theirs() -> None:
        read = EventAccumulator(str(folder / "board"), size_guidance={"scalars": 0})
        read.Reload()
        assert len(read.Scalars("loss")) == SOME_POINTS

    def ours() -> None:
        metrics = Metrics(some)
        metrics.refresh()
        assert metrics.curve("loss", points=800)["total"] == SOME_POINTS

    body = "[" + ",".join(json.dumps(_record(step)) for step in range(1, SOME_POINTS + 1)) + "]"
    print("\n20,000 points of 3 curves, read for the first time:\n")
    found = interleave({"Headway": ours, "TensorBoard": theirs, LIMIT: lambda: json.loads(body)}, 3)
    print(show(found, "Headway"))
    for row in found[:2]:
        limit = {"limit": "one JSON of all lines read", "floor": found[2].median * 1e3} if row is found[0] else {}
        note("20,000 points read", row.name, row.median * 1e3, "ms", **limit)  # type: ignore[arg-type]
