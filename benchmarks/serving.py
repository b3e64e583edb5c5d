"""A model behind HTTP: Headway's server, a plain FastAPI one and LitServe, with the same model and clients.

Promised: batched throughput at least 3 × one request at a time on the same cores, with p99. The model is a captioner
of the demo's size with a beam of 3. Each server is a separate process; they are loaded in turn, and the others are
paused meanwhile (an idle one may poll for work all the time, on the same cores). FastAPI and LitServe are installed in
separate virtual environments under ~/.cache/headway-bench, and use this one's torch.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Absent, environment, note
from tests.serving.loading import Tally, load, many_files, request_of

SECONDS = 6.0  # of each load, about
ROUNDS = 3
CROWD = 64
PROMISE = 3.0

HEADWAY = """
import sys
from headway.cli import main
sys.exit(main(["serve", sys.argv[1], "--port", sys.argv[2], "--quiet", "--queue", "512"]))
"""

MODEL = """
import base64, io, sys
import numpy as np
from PIL import Image
from headway.bundle.format import Bundle
from headway.artifacts.predictor import open_service

def pixels(text):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB"))
"""

FASTAPI = (
    MODEL
    + """
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

service = open_service(Bundle.open(sys.argv[1]))
app = FastAPI()

class Body(BaseModel):
    instances: list[dict[str, str]]

@app.post("/predict")
def predict(body: Body):
    prepared = [service.prepare({"image": pixels(each["image"])}) for each in body.instances]
    return {"predictions": service.answer(prepared, explain=False)}

@app.get("/ready")
def ready():
    return {}

uvicorn.run(app, port=int(sys.argv[2]), log_level="error")
"""
)

LITSERVE = (
    MODEL
    + """
import litserve

class Captions(litserve.LitAPI):
    def setup(self, device):
        self.service = open_service(Bundle.open(sys.argv[1]))
    def decode_request(self, request):
        return self.service.prepare({"image": pixels(request["instances"][0]["image"])})
    def batch(self, inputs):
        return inputs
    def predict(self, prepared):
        return self.service.answer(prepared, explain=False)
    def unbatch(self, answers):
        return answers
    def encode_response(self, answer):
        return {"predictions": [answer]}

if __name__ == "__main__":
    api = Captions(max_batch_size=32, batch_timeout=0.005)
    server = litserve.LitServer(api, accelerator="cpu", timeout=60)
    server.run(port=int(sys.argv[2]), log_level="error", generate_client_file=False)
"""
)

# What no server can be faster than: the model asked by nobody, one at a time and in its best batch, pictures ready.
ALONE = (
    MODEL
    + """
import json, time
import torch

service = open_service(Bundle.open(sys.argv[1]))
ready = [service.prepare({"image": np.full((64, 64, 3), shade, np.uint8)}) for shade in range(64)]

def rate(batch):
    best = 0.0
    for threads in (1, torch.get_num_threads()):
        torch.set_num_threads(threads)
        service.answer(ready[:batch], explain=False)
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < 1.0:
            service.answer(ready[:batch], explain=False)
            done += batch
        best = max(best, done / (time.perf_counter() - began))
    return best

for line in sys.stdin:
    print(json.dumps([rate(1), max(rate(batch) for batch in (16, 32, 64))]), flush=True)
"""
)


class Up(NamedTuple):
    port: int
    group: int  # of its processes


SIDES = {
    "headway": (None, HEADWAY, "/ready"),
    "FastAPI, by hand": ("fastapi", FASTAPI, "/ready"),
    "LitServe": ("litserve", LITSERVE, "/health"),
}


def main() -> int:
    many_files()
    with tempfile.TemporaryDirectory(prefix="headway-serving-") as folder:
        bundle, requests = _bundle(Path(folder) / "bundle"), _requests()
        found, alone = _measured(Path(folder), bundle, requests)
    return _told(found, alone)


def _told(found: dict[str, dict[int, Tally]], model: dict[int, float]) -> int:
    alone = _rate(found["headway"][1])
    print("| | clients | answers a second | × one at a time | p50 (ms) | p99 (ms) |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, loads in found.items():
        for clients, tally in loads.items():
            times = f"{tally.quantile(0.5) * 1e3:.0f} | {tally.quantile(0.99) * 1e3:.0f}"
            print(f"| {name} | {clients} | {_rate(tally):.1f} | {_rate(tally) / alone:.2f} | {times} |")
    for clients, rate in model.items():
        print(f"| the model, asked by nobody | {clients} | {rate:.1f} | {rate / alone:.2f} | | |")
        for name, loads in found.items():
            limit = {"limit": "the model without a server", "floor": rate} if name == "headway" else {}
            note(f"{clients} clients", name, _rate(loads[clients]), "answers/s", **limit)  # type: ignore[arg-type]
    gain = _rate(found["headway"][CROWD]) / alone
    print(f"\nbatched against one request at a time: {gain:.1f} × (promised: {PROMISE:g} ×)")
    return int(gain < PROMISE)


def _rate(tally: Tally) -> float:
    return tally.right / tally.took


def _measured(
    folder: Path, bundle: Path, requests: list[bytes]
) -> tuple[dict[str, dict[int, Tally]], dict[int, float]]:
    """Each server is up for all rounds, and only one is asked at any time: what disturbs hits all alike."""
    found: dict[str, dict[int, Tally]] = {}
    running: dict[str, Up] = {}
    alone: list[list[float]] = []
    with ExitStack() as stack:
        for number, (name, (package, script, ready)) in enumerate(SIDES.items()):
            try:
                python = str(environment(f"serving/{package}", package, "uvicorn")) if package else sys.executable
                up = stack.enter_context(_server(python, folder / f"side{number}.py", script, bundle, ready))
            except (Absent, subprocess.CalledProcessError, OSError, RuntimeError) as error:
                said = str(getattr(error, "stderr", "") or error).strip().splitlines()
                print(f"{name} takes no part: {said[-1][:200] if said else error}\n", flush=True)
                continue
            running[name] = up
            found[name] = {1: Tally(), CROWD: Tally()}
        (folder / "alone.py").write_text(ALONE)
        model = subprocess.Popen([sys.executable, str(folder / "alone.py"), str(bundle)],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
        stack.callback(model.communicate)
        for _ in range(ROUNDS):
            with _still(list(running.values())):
                alone.append(_asked(model))
            for name, up in running.items():
                with _still([other for other in running.values() if other is not up]):
                    for clients, whole in found[name].items():
                        _add(whole, _for_a_while(up.port, requests, clients))
    one, many = (statistics.median(rates) for rates in zip(*alone, strict=True))
    return found, {1: one, CROWD: many}


def _asked(model: subprocess.Popen[str]) -> list[float]:
    assert model.stdin is not None
    assert model.stdout is not None
    model.stdin.write("go\n")
    model.stdin.flush()
    rates: list[float] = json.loads(model.stdout.readline())
    return rates


@contextmanager
def _still(others: list[Up]) -> Iterator[None]:
    for other in others:
        os.killpg(other.group, signal.SIGSTOP)
    try:
        yield
    finally:
        for other in others:
            os.killpg(other.group, signal.SIGCONT)


def _add(whole: Tally, part: Tally) -> None:
    assert not part.wrong, part.wrong[0]
    whole.right += part.right
    whole.took += part.took
    whole.seconds += part.seconds


def _for_a_while(port: int, requests: list[bytes], clients: int) -> Tally:
    """About SECONDS / ROUNDS of load, as many requests as a first try says will fit."""
    tried = asyncio.run(load(port, [(requests[0], b'"text"')] * clients, clients=clients))
    count = max(clients * 2, int(clients * SECONDS / ROUNDS / tried.took))
    asked = [(requests[number % len(requests)], b'"text"') for number in range(count)]
    return asyncio.run(load(port, asked, clients=clients))


@contextmanager
def _server(python: str, path: Path, script: str, bundle: Path, ready: str) -> Iterator[Up]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path.write_text(script)
    log = path.with_suffix(".log").open("w")
    process = subprocess.Popen([python, str(path), str(bundle), str(port)], stdout=log, stderr=subprocess.STDOUT,
                               start_new_session=True)  # fmt: skip
    try:
        end = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{ready}", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(path.with_suffix(".log").read_text()[-400:] or "it does not start") from None
                time.sleep(0.2)
        yield Up(port, process.pid)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _bundle(folder: Path) -> Path:
    """A captioner as the recipe makes it, with weights as they begin: it talks until it may not go on."""
    import torch

    from headway.recipes.captioning.config import Config
    from headway.recipes.captioning.inference import bundle
    from headway.recipes.captioning.model import Captioner
    from headway.recipes.captioning.vocabulary import Vocabulary
    from headway.spec import Job

    torch.manual_seed(0)
    words = Vocabulary.of(["a small red circle left of the large blue square"], min_count=1, max_words=100)
    cfg = Config()
    job = Job(name="captions", recipe="captioning", outputs="runs")
    bundle(Captioner(cfg, words), cfg, job, {}).write(folder)
    return folder


def _requests() -> list[bytes]:
    """Drawn pictures, as people would send them."""
    import io

    import numpy as np
    from PIL import Image

    made = []
    for seed in range(16):
        pixels = np.random.default_rng(seed).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "JPEG")
        body = json.dumps({"instances": [{"image": base64.b64encode(out.getvalue()).decode()}]}).encode()
        made.append(request_of("/predict", body))
    return made
