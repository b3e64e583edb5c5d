"""Preparing pictures at 256 pixels, against a multiprocessing.Pool that opens each JPEG with Pillow and pickles it.

Promised: 3 × the pictures per second for pictures of 2 megapixels and more, not slower at 640 × 480, output 10 times
smaller; memory that does not grow with the number of pictures, and time that grows linearly. Both resize with Lanczos
and write their output to disk; Headway also hashes every picture twice, for duplicates. Dask's workers are started
before the measurement, as are the Pool's. HEADWAY_BENCH_FULL=1 adds 100,000 pictures to the memory part.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.harness import Row, interleave, note, show
from headway.data.prepare.pipeline import Encoding, prepare

REAL = (
    Path(os.environ.get("HEADWAY_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    / "coco_mini"
    / "images"
)
# So many that a rate is measured, and not what a start costs: with 120 of 2 megapixels that is a sixth of the time.
SETS = {"640 × 480": (640, 480, 240), "2 megapixels": (1632, 1224, 480)}
REPEATS = 3
CORES = os.cpu_count() or 1
FULL = bool(os.environ.get("HEADWAY_BENCH_FULL"))


def main() -> int:
    broken = 0
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
        root = Path(folder)
        with scheduler(root, CORES) as address:
            for name, (width, height, count) in SETS.items():
                source = root / name.replace(" ", "")
                make_pictures(source / "train" / "all", count, width, height)
                (source / "train" / "other").mkdir()
                shutil.copy(next((source / "train" / "all").iterdir()), source / "train" / "other")
                broken += compare(name, source, root, address)
        broken += memory(root)
    return broken


def compare(name: str, source: Path, root: Path, address: str) -> int:
    """One set of pictures; returns how many promises it breaks."""
    files = sorted(source.rglob("*.jpg"))
    pools = {f"Pool({CORES})": CORES, f"Pool({CORES} × 50)": CORES * 50}
    out = root / "out"

    def ours(encoding: Encoding) -> None:
        shutil.rmtree(out / encoding, ignore_errors=True)
        prepare(str(source), str(out / encoding), encoding=encoding, dask=address)

    cases: dict[str, Callable[[], object]] = {
        "headway, JPEG": partial(ours, "jpeg"),
        "headway, raw": partial(ours, "raw"),
    }
    running = {label: multiprocessing.get_context("fork").Pool(size) for label, size in pools.items()}
    try:
        for label, pool in running.items():
            cases[label] = partial(pool.map, partial(open_and_pickle, to=root / "pickles"), files)
        cases["bare decode"] = partial(running[f"Pool({CORES})"].map, only_decode, files)
        rows = interleave(cases, REPEATS)
    finally:
        for pool in running.values():
            pool.terminate()
            pool.join()
    print(f"\n### {len(files)} pictures of {name}\n\n{show(rows, 'headway, JPEG')}\n")
    bare = rows[-1].median
    for row in rows:
        limit = {"limit": "bare decode on all cores", "floor": len(files) / bare} if row.name[:7] == "headway" else {}
        note(f"pictures of {name}", row.name, len(files) / row.median, "pictures/s", **limit)  # type: ignore[arg-type]
    return promises(name, rows, len(files), out / "jpeg", root / "pickles")


def promises(name: str, rows: list[Row], count: int, shards: Path, pickles: Path) -> int:
    medians = {row.name: row.median for row in rows}
    best = min(seconds for label, seconds in medians.items() if label.startswith("Pool"))
    ratio, wanted = best / medians["headway, JPEG"], 1.0 if name.startswith("640") else 3.0
    smaller = folder_bytes(pickles) / folder_bytes(shards / "shards")
    rate = count / medians["headway, JPEG"]
    print(f"{rate:.0f} pictures a second, {ratio:.1f} × the best Pool; output {smaller:.0f} × smaller")
    broken = []
    if ratio < wanted:
        broken.append(f"{name}: {ratio:.2f} × the best Pool, not {wanted:.0f} ×")
    if smaller < 10:
        broken.append(f"{name}: output only {smaller:.1f} × smaller")
    for line in broken:
        print(f"broken promise: {line}")
    return len(broken)


def open_and_pickle(path: Path, to: Path) -> None:
    """What the Pool does, one picture at a time: open, bring to 256 pixels, pickle as half floats."""
    to.mkdir(exist_ok=True)
    with Image.open(path) as picture:
        rgb = picture.convert("RGB")
    width, height = rgb.size
    scale = 256 / min(width, height)
    small = rgb.resize((round(width * scale), round(height * scale)), Image.Resampling.LANCZOS)
    with (to / f"{path.stem}.pkl").open("wb") as file:
        pickle.dump((np.asarray(small).transpose(2, 0, 1) / np.float16(255)).astype(np.float16), file)


def only_decode(path: Path) -> None:
    """What preparing cannot be faster than: the file read, and decoded at the smallest eighth that is large enough."""
    import simplejpeg  # type: ignore[import-untyped]

    simplejpeg.decode_jpeg(path.read_bytes(), "RGB", min_width=512, min_height=512)


@contextmanager
def scheduler(root: Path, workers: int) -> Iterator[str]:
    """A Dask scheduler with workers that have imported what they need."""
    file = root / "scheduler.json"
    python = [sys.executable, "-m"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    start = [*python, "distributed.cli.dask_scheduler", "--no-dashboard", "--host", "127.0.0.1", "--port", "0"]
    processes = [subprocess.Popen([*start, "--scheduler-file", str(file)], **quiet)]
    try:
        while not file.exists():
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        work = [*python, "distributed.cli.dask_worker", "--no-nanny", "--no-dashboard", "--nthreads", "1"]
        work += ["--preload", "headway.data.prepare.shard_task", "--local-directory", str(root), address]
        processes += [subprocess.Popen(work, **quiet) for _ in range(workers)]
        with import_module("distributed").Client(address, set_as_default=False) as client:
            client.wait_for_workers(workers)
        yield address
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def make_pictures(folder: Path, count: int, width: int, height: int, quality: int = 92) -> None:
    """Mosaics of photographs where there are some, so that pixels are as hard to decode as a camera's; else made up."""
    folder.mkdir(parents=True)
    tiles = [Image.open(path).convert("RGB") for path in sorted(REAL.glob("*.jpg"))[:120]]
    if not tiles:
        print("no photographs here: pictures are made up")
        tiles = [Image.fromarray(noise(256, 340, seed)) for seed in range(24)]
    for number in range(count):
        whole = Image.new("RGB", (width, height))
        for place, (x, y) in enumerate((x, y) for y in range(0, height, 256) for x in range(0, width, 340)):
            whole.paste(tiles[(number * 7 + place) % len(tiles)].resize((340, 256)), (x, y))
        whole.save(folder / f"{number:06d}.jpg", quality=quality)


def noise(height: int, width: int, seed: int) -> Any:
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 255, (height // 16 + 1, width // 16 + 1, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    return np.clip(smooth + random.normal(0, 8, smooth.shape), 0, 255).astype(np.uint8)


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


GROW = """
import sys
from headway.data.prepare.pipeline import prepare
if __name__ == "__main__":
    prepare(sys.argv[1], sys.argv[2], size=64, workers=2)
"""


def memory(root: Path) -> int:
    """Anonymous memory and time of preparing more and more small pictures: each time a process tree of its own."""
    script = root / "grow.py"
    script.write_text(GROW)
    print(
        "\n### Memory and time, pictures of 96 × 72\n\n| pictures | RssAnon, all processes | seconds | ms a picture |"
    )
    print("| ---: | ---: | ---: | ---: |")
    body = io.BytesIO()
    Image.fromarray(noise(72, 96, 0)).save(body, "JPEG", quality=85)
    found: list[tuple[int, float, float]] = []
    for count in (1_000, 10_000, 100_000) if FULL else (1_000, 10_000):
        source = root / f"many{count}"
        many_pictures(source, count, body.getvalue())
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, str(script), str(source), str(root / f"made{count}")])
        peak = 0
        while process.poll() is None:
            peak = max(peak, anonymous(process.pid))
            time.sleep(0.1)
        seconds = time.perf_counter() - began
        if process.returncode:
            return 1
        found.append((count, peak, seconds))
        print(f"| {count:,} | {peak / 1e6:.0f} MB | {seconds:.1f} | {seconds / count * 1e3:.2f} |", flush=True)
        shutil.rmtree(source)
    worst = max(b[1] / a[1] for a, b in pairwise(found))
    print(f"\n10 × the pictures take at most {worst:.2f} × the memory")
    if worst > 1.2:
        print("broken promise: more than 1.2 ×")
    return int(worst > 1.2)


def many_pictures(source: Path, count: int, body: bytes) -> None:
    """Different bytes in each, after the end of the picture, so that none is a duplicate of another."""
    folders = [source / "train" / f"class{number}" for number in range(10)]
    for folder in folders:
        folder.mkdir(parents=True)
    for number in range(count):
        (folders[number % 10] / f"{number:06d}.jpg").write_bytes(body + number.to_bytes(4, "big"))


def anonymous(pid: int) -> int:
    """RssAnon of a process and all its descendants, in bytes."""
    total = 0
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                total += int(line.split()[1]) * 1024
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                total += anonymous(int(child))
    except OSError:
        pass  # it ended while we looked
    return total


if __name__ == "__main__":
    sys.exit(main())
