"""Reading shuffled batches of 64 crops of 224 pixels, uint8: Headway's shards compared with common loaders.

Promised, in pictures per second: raw shards 5 × the best of torch's DataLoader, WebDataset, litdata, MosaicML Streaming
and HF datasets on 256-pixel JPEGs, 0.7 × a bare memory-map copy and 20 × Pillow on the original files; JPEG shards 2 ×
the best of them. The first batch from the middle of an epoch takes as long as a first batch. Each loader runs in its
own process, other tools with two workers, in a separate environment under ~/.cache/headway-bench; all take turns with
one epoch each, after a first one that does not count. A feed has some batches ready when an epoch begins, and can
therefore exceed its limit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.data_prepare import anonymous, make_pictures
from benchmarks.harness import Absent, Row, environment, interleave, note
from headway.data.prepare.pipeline import prepare

COUNT = 1536
REPEATS = 3

# Every side: `epoch()` gives batches; asked for one, it counts the pictures and answers.
SERVE = """
import json, sys
root = sys.argv[1]
def crop(picture, size=224):
    width, height = picture.size
    x, y = random.randrange(width - size + 1), random.randrange(height - size + 1)
    return torch.from_numpy(np.array(picture.convert("RGB").crop((x, y, x + size, y + size)))).permute(2, 0, 1)
class Files(torch.utils.data.Dataset):
    def __init__(self, folder, prepare=lambda picture: picture):
        self.paths, self.prepare = sorted(glob.glob(folder + "/**/*.jpg", recursive=True)), prepare
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, index):
        return crop(self.prepare(Image.open(self.paths[index])))
def serve(epoch):
    for _ in sys.stdin:
        seen = 0
        for batch in epoch():
            assert batch.shape[1:] == (3, 224, 224) and batch.dtype == torch.uint8
            seen += len(batch)
        print(json.dumps(seen), flush=True)
"""
START = "import glob, io, os, random, sys\nimport numpy as np, torch\nfrom PIL import Image\ntorch.set_num_threads(1)\n"
# How others do it: what to install, how to make their files, how to read them.
TORCH = """
loader = torch.utils.data.DataLoader(Files(root + "/jpeg256"), 64, shuffle=True, num_workers=2, persistent_workers=True)
serve(lambda: loader)
"""
ORIGINALS = """
def small(picture):
    scale = 256 / min(picture.size)
    return picture.convert("RGB").resize([round(side * scale) for side in picture.size], Image.BILINEAR)
files = Files(root + "/original", small)
loader = torch.utils.data.DataLoader(files, 64, shuffle=True, num_workers=2, persistent_workers=True)
serve(lambda: loader)
"""
WEBDATASET_MAKE = """
import webdataset as wds
os.makedirs(sys.argv[1] + "/tar")
with wds.ShardWriter(sys.argv[1] + "/tar/%04d.tar", maxcount=256) as sink:
    for path in sorted(glob.glob(sys.argv[1] + "/jpeg256/*.jpg")):
        sink.write({"__key__": os.path.basename(path)[:-4], "jpg": open(path, "rb").read()})
"""
WEBDATASET = """
import webdataset as wds
urls = sorted(glob.glob(root + "/tar/*.tar"))
data = wds.WebDataset(urls, shardshuffle=100).shuffle(1000).decode("pil").to_tuple("jpg")
loader = wds.WebLoader(data.map_tuple(crop).batched(64), batch_size=None, num_workers=2, persistent_workers=True)
serve(lambda: (torch.as_tensor(batch[0]) for batch in loader))
"""
LITDATA_MAKE = """
import litdata
def read(path):
    return open(path, "rb").read()
if __name__ == "__main__":
    files = sorted(glob.glob(sys.argv[1] + "/jpeg256/*.jpg"))
    litdata.optimize(read, files, output_dir=sys.argv[1] + "/litdata", chunk_bytes="64MB", num_workers=1)
"""
LITDATA = """
import litdata
class Set(litdata.StreamingDataset):
    def __getitem__(self, index):
        return crop(Image.open(io.BytesIO(super().__getitem__(index))))
data = Set(root + "/litdata", shuffle=True)
loader = litdata.StreamingDataLoader(data, batch_size=64, num_workers=2, persistent_workers=True)
serve(lambda: loader)
"""
MOSAIC_MAKE = """
from streaming import MDSWriter
with MDSWriter(out=sys.argv[1] + "/mds", columns={"picture": "jpeg"}) as writer:
    for path in sorted(glob.glob(sys.argv[1] + "/jpeg256/*.jpg")):
        writer.write({"picture": Image.open(path)})
"""
MOSAIC = """
from streaming import StreamingDataset
class Set(StreamingDataset):
    def __getitem__(self, index):
        return crop(super().__getitem__(index)["picture"])
data = Set(local=root + "/mds", shuffle=True, batch_size=64)
loader = torch.utils.data.DataLoader(data, 64, num_workers=2, persistent_workers=True)
serve(lambda: loader)
"""
HF_MAKE = """
import datasets
files = sorted(glob.glob(sys.argv[1] + "/jpeg256/*.jpg"))
rows = datasets.Dataset.from_dict({"picture": files}).cast_column("picture", datasets.Image())
rows.map(lambda row: row, load_from_cache_file=False).save_to_disk(sys.argv[1] + "/hf")
"""
HF = """
import datasets
rows = datasets.load_from_disk(root + "/hf")
rows.set_transform(lambda batch: {"picture": [crop(picture) for picture in batch["picture"]]})
loader = torch.utils.data.DataLoader(rows, 64, shuffle=True, num_workers=2, persistent_workers=True)
serve(lambda: (batch["picture"] for batch in loader))
"""
PEERS = {
    "torch DataLoader": ("", "", TORCH),
    "Pillow on the originals": ("", "", ORIGINALS),
    "WebDataset": ("webdataset", WEBDATASET_MAKE, WEBDATASET),
    "litdata": ("litdata", LITDATA_MAKE, LITDATA),
    "MosaicML Streaming": ("mosaicml-streaming", MOSAIC_MAKE, MOSAIC),
    "HF datasets": ("datasets", HF_MAKE, HF),
}
OURS = """
from headway.data.loading.loader import PictureFeed
from headway.data.dataset.rows import Rows
rows = Rows(root + "/shards-{0}", "train")
feed = PictureFeed([rows], 64, training=True, crop=224, columns=["picture"], seed=1)
epochs = iter(range(10**6))
def epoch():
    number = next(epochs)
    return (feed.batch(number, step, 0, 1)["picture"] for step in range(len(feed)))
serve(epoch)
"""
BARE = """
from headway.data.dataset.rows import Rows
rows = Rows(root + "/shards-raw", "train")
views = [rows.shard(number).cells("picture").view for number in range(len(rows._files))]
pictures = [(view, row) for view in views for row in range(len(view))]
out = np.empty((64, 224, 224, 3), np.uint8)
def epoch():
    random.shuffle(pictures)
    for first in range(0, len(pictures), 64):
        for place, (view, row) in zip(out, pictures[first : first + 64]):
            x, y = random.randrange(33), random.randrange(33)
            place[:] = view[row, y : y + 224, x : x + 224]
        yield torch.from_numpy(out).permute(0, 3, 1, 2)
serve(epoch)
"""
# What JPEG shards cannot be faster than: as many threads as cores that decode what lies in memory, and nothing else.
DECODE = """
import simplejpeg
from concurrent.futures import ThreadPoolExecutor
from headway.data.dataset.rows import Rows
rows = Rows(root + "/shards-jpeg", "train")
cells = [rows.shard(number).cells("picture") for number in range(len(rows._files))]
bodies = [bytes(one[row]) for one in cells for row in range(len(one))]
sizes = [simplejpeg.decode_jpeg_header(body)[:2] for body in bodies]
own = __import__("threading").local()
def decode(place):
    (height, width), body = sizes[place], bodies[place]
    memory = own.__dict__.setdefault(f"{height}x{width}", np.empty((height, width, 3), np.uint8))
    simplejpeg.decode_jpeg(body, "RGB", buffer=memory)
def some(places):
    for place in places:
        decode(place)
pool, cores, batch = ThreadPoolExecutor(), os.cpu_count(), torch.empty(64, 3, 224, 224, dtype=torch.uint8)
def epoch():
    list(pool.map(some, [range(first, len(bodies), cores) for first in range(cores)]))
    return [batch] * (len(bodies) // 64)
serve(epoch)
"""
LIMITS = {"headway, raw": "bare memory-map copy", "headway, JPEG": "bare decode"}


class Side:
    """One contender in its own process."""

    def __init__(self, python: str, script: str, root: Path) -> None:
        private = {name: str(root / "private") for name in ("TMPDIR", "HF_HOME")}
        private |= {
            "DATA_OPTIMIZER_CACHE_FOLDER": str(root / "private" / "chunks"),
            "DATA_OPTIMIZER_DATA_CACHE_FOLDER": str(root / "private" / "data"),
        }
        file = root / f"side-{abs(hash(script))}.py"
        file.write_text(START + SERVE + script)
        self.process = subprocess.Popen(
            [python, str(file), str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(root / f"{file.stem}.log").open("w"),
            text=True,
            env=os.environ | private,
        )
        self.log = root / f"{file.stem}.log"

    def epoch(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(self.log.read_text().strip().splitlines()[-1])
        return int(json.loads(answer))

    def end(self) -> None:
        self.process.terminate()
        self.process.communicate()


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
        root = Path(folder)
        (root / "private").mkdir()
        make_data(root)
        sides = started(root)
        try:
            rows, seen = measured(sides)
        finally:
            for side in sides.values():
                side.end()
        broken = promises(rows, seen)
        return broken + resume(root) + memory(root)


def make_data(root: Path) -> None:
    """Originals of 640 × 480, the same at 256 pixels as files, and as our shards."""
    make_pictures(root / "original" / "train" / "a", COUNT // 2, 640, 480)
    make_pictures(root / "original" / "train" / "b", COUNT // 2, 600, 480)
    (root / "jpeg256").mkdir()
    for number, path in enumerate(sorted((root / "original").rglob("*.jpg"))):
        picture = Image.open(path)
        scale = 256 / min(picture.size)
        small = picture.resize((round(picture.width * scale), round(picture.height * scale)), Image.Resampling.LANCZOS)
        small.save(root / "jpeg256" / f"{number:06d}.jpg", quality=90)
    prepare(str(root / "original"), str(root / "shards-raw"), encoding="raw", workers=2)
    prepare(str(root / "original"), str(root / "shards-jpeg"), workers=2)


def started(root: Path) -> dict[str, Side]:
    """Everybody who can be had, each having done one epoch."""
    ours = {"headway, raw": OURS.format("raw"), "headway, JPEG": OURS.format("jpeg"), "bare memory-map copy": BARE}
    ours["bare decode"] = DECODE
    sides = {name: Side(sys.executable, script, root) for name, script in ours.items()}
    for name, (package, make, script) in PEERS.items():
        try:
            python = (
                str(environment(f"data-loading/{name.replace(' ', '-').lower()}", package))
                if package
                else sys.executable
            )
            if make:
                maker = root / "make.py"
                maker.write_text(START + make)
                subprocess.run([python, str(maker), str(root)], check=True, capture_output=True, text=True, cwd=root)
            side = Side(python, script, root)
            side.epoch()
            sides[name] = side
        except (Absent, subprocess.CalledProcessError, OSError, RuntimeError) as error:
            said = str(getattr(error, "stderr", "") or error).strip().splitlines()
            print(f"{name} takes no part: {said[-1][:200] if said else error}\n", flush=True)
    return sides


def measured(sides: dict[str, Side]) -> tuple[dict[str, Row], dict[str, int]]:
    seen: dict[str, int] = {}

    def case(name: str) -> Any:
        def epoch() -> None:
            seen[name] = sides[name].epoch()

        return epoch

    rows = {row.name: row for row in interleave({name: case(name) for name in sides}, REPEATS)}
    print("| | pictures a second | ± |\n| --- | ---: | ---: |")
    for name, row in sorted(rows.items(), key=lambda item: item[1].median / seen[item[0]]):
        print(f"| {name} | {seen[name] / row.median:,.0f} | {row.spread:.0%} |")
        bare = LIMITS.get(name, "bare decode" if name in PEERS else None)
        limit = {"limit": bare, "floor": seen[bare] / rows[bare].median} if bare else {}
        note("shuffled crops", name, seen[name] / row.median, "pictures/s", **limit)  # type: ignore[arg-type]
    return rows, seen


def promises(rows: dict[str, Row], seen: dict[str, int]) -> int:
    rate = {name: seen[name] / row.median for name, row in rows.items()}
    others = {name: value for name, value in rate.items() if name in PEERS and name != "Pillow on the originals"}
    best = max(others, key=lambda name: others[name])
    raw, jpeg = rate["headway, raw"], rate["headway, JPEG"]
    wanted = [
        (f"raw shards against {best}", raw / rate[best], 5.0),
        ("raw shards against a bare copy", raw / rate["bare memory-map copy"], 0.7),
        ("raw shards against Pillow on the originals", raw / rate["Pillow on the originals"], 20.0),
        (f"JPEG shards against {best}", jpeg / rate[best], 2.0),
    ]
    print("\n| | × | promised |\n| --- | ---: | ---: |")
    for name, ratio, promised in wanted:
        print(f"| {name} | {ratio:.2f} | {promised} |{' **broken**' if ratio < promised else ''}")
    return sum(ratio < promised for _, ratio, promised in wanted)


def resume(root: Path) -> int:
    """The first batch of a feed just opened, at the beginning and deep inside of an epoch."""
    from headway.data.dataset.rows import Rows
    from headway.data.loading.loader import PictureFeed

    def first_batch(step: int) -> Any:
        def open_and_read() -> None:
            rows = Rows(str(root / "shards-raw"), "train")
            PictureFeed([rows], 64, training=True, crop=224, columns=["picture"], seed=1, ahead=0).batch(3, step, 0, 1)

        return open_and_read

    steps = COUNT // 64
    cases = {f"step {step} of {steps}": first_batch(step) for step in (0, steps // 2, steps - 1)}
    rows = interleave(cases, 9)
    print("\n" + "\n".join(f"first batch at {row.name}: {row.median * 1e3:.1f} ms" for row in rows))
    slower = max(row.median for row in rows) / rows[0].median
    if slower > 1.5:
        print(f"broken promise: {slower:.2f} × the time of a first batch")
    return int(slower > 1.5)


GROW = """
from headway.data.loading.loader import PictureFeed
from headway.data.dataset.rows import Rows
rows = Rows(sys.argv[1], "train", limit=int(sys.argv[2]))
feed = PictureFeed([rows], 32, training=True, crop=224, columns=["picture"], seed=1)
for step in range(len(feed)):
    feed.batch(0, step, 0, 1)
print("done", flush=True)
sys.stdin.readline()
"""


def memory(root: Path) -> int:
    """Anonymous memory after reading an epoch of a tenth of the pictures, and of all."""
    script, held = root / "read.py", []
    script.write_text(START + GROW)
    for limit in (COUNT // 10, COUNT):
        command = [sys.executable, str(script), str(root / "shards-raw"), str(limit)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.1)
        held.append(anonymous(process.pid))
        process.communicate(b"\n")
    print(
        f"\nRssAnon after an epoch of {COUNT // 10} pictures {held[0] / 1e6:.0f} MB, of {COUNT} {held[1] / 1e6:.0f} MB"
    )
    if held[1] > 1.2 * held[0]:
        print("broken promise: more than 1.2 ×")
    return int(held[1] > 1.2 * held[0])


if __name__ == "__main__":
    sys.exit(main())
