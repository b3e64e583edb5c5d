"""The result of a `kill -9` in the middle of saving, and whether a damaged checkpoint is detected.

Every library saves the same state repeatedly, under a new name each time, and keeps the newest two. All numbers of a
state are its step, so that a mixture of two states is visible. The process is killed at a random moment, and the same
library reads the newest checkpoint on the disk: is it complete, rejected with an error (a person must find the older
one), or silently wrong? Then one byte in the middle of the largest file of a complete checkpoint is changed, and it is
read again. `fsync` shows whether the library calls it (by strace): without it a power failure may lose what a kill
cannot. Headway is read as a run reads it: it falls back to the newest complete checkpoint by itself.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Absent, environment

KILLS = 10
ROOT = Path(__file__).resolve().parents[1]

# A contender says how it saves a step and how it reads what is newest; `state` has 24 MB, filled with the step.
COMMON = """
import os, shutil, sys, time, warnings
warnings.filterwarnings("ignore")
import torch
folder, order = sys.argv[1], sys.argv[2]
state = {f"layer{n}": torch.zeros(1 << 20) for n in range(6)}
def newest():
    return max((name for name in os.listdir(folder) if name.startswith("step-")), default="")
def prune():
    for name in sorted(name for name in os.listdir(folder) if name.startswith("step-"))[:-2]:
        path = os.path.join(folder, name)
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
def path(step):
    return os.path.join(folder, f"step-{step:06d}")
"""
SERVE = """
if order != "load":
    for step in range(1, 4 if order == "three" else 10**6):
        for tensor in state.values(): tensor.fill_(step)
        save(step)
        prune()
        print(step, flush=True)
    os._exit(0)
else:
    found = load()
    values = {float(v) for tensor in found.values() for v in (tensor.min(), tensor.max())}
    print(sorted(values), flush=True)
"""
TORCH = """
def save(step): torch.save(state, path(step))
def load(): return torch.load(os.path.join(folder, newest()), weights_only=True)
"""
SAFETENSORS = """
from safetensors.torch import load_file, save_file
def save(step): save_file(state, path(step))
def load(): return load_file(os.path.join(folder, newest()))
"""
DCP = """
import torch.distributed.checkpoint as dcp
def save(step): dcp.save(state, checkpoint_id=path(step))
def load():
    dcp.load(state, checkpoint_id=os.path.join(folder, newest()))
    return state
"""
DCP_ASYNC = """
import socket
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
with socket.socket() as free:
    free.bind(("127.0.0.1", 0)); port = free.getsockname()[1]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
def save(step): dcp.async_save(state, checkpoint_id=path(step)).result()
def load():
    dcp.load(state, checkpoint_id=os.path.join(folder, newest()))
    return state
"""
TORCHSNAPSHOT = """
from torchsnapshot import Snapshot, StateDict
app = {"state": StateDict(**state)}
def save(step): Snapshot.async_take(path(step), app).wait()
def load():
    Snapshot(os.path.join(folder, newest())).restore(app)
    return dict(app["state"])
"""
LIGHTNING = """
import logging; logging.disable(logging.WARNING)
from lightning.pytorch.plugins.io import TorchCheckpointIO
io = TorchCheckpointIO()
def save(step): io.save_checkpoint({"state_dict": state}, path(step))
def load(): return io.load_checkpoint(os.path.join(folder, newest()))["state_dict"]
"""
HEADWAY = """
os.environ["HEADWAY_RUN_URL"] = folder
import headway
run = headway.start()
class Held:
    def state_dict(self): return state
    def load_state_dict(self, found): state.update(found)
run.restore(model=Held())
keeping, first = run._checkpoints, run._checkpoints.position.step
def save(step):
    keeping.position.step = first + step
    for tensor in state.values(): tensor.fill_(first + step)
    keeping.save()
    assert keeping.writer.drain()
def prune(): pass
def load(): return state
"""
CONTENDERS = {
    "Headway": ("", HEADWAY),
    "torch.save": ("", TORCH),
    "safetensors": ("", SAFETENSORS),
    "DCP": ("", DCP),
    "DCP async": ("", DCP_ASYNC),
    "torchsnapshot": ("torchsnapshot", TORCHSNAPSHOT),
    "Lightning": ("lightning", LIGHTNING),
}


class Found(NamedTuple):
    kind: str  # "whole", "refused" or "wrong"
    step: int = 0


def main() -> int:
    print("| | whole | refused | wrong, and not a word | one byte changed | fsync |")
    print("| --- | ---: | ---: | ---: | --- | --- |")
    broken = 0
    for name, (package, script) in CONTENDERS.items():
        try:
            python = str(environment(f"checkpoint-stall/{package}", package)) if package else sys.executable
            line, bad = measured(python, script, random.Random(7))
        except (Absent, RuntimeError) as why:
            print(f"| {name} | takes no part: {why} | | | | |", flush=True)
            continue
        print(f"| {name} | {line} |", flush=True)
        broken += bad and name == "Headway"
    print(f"\n{KILLS} kills each")
    return broken


def measured(python: str, script: str, dice: random.Random) -> tuple[str, bool]:
    counts: Counter[str] = Counter()
    with place() as folder:
        for _ in range(KILLS):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            saved = killed(python, script, folder, dice)
            found = read(python, script, folder)
            counts["wrong" if found.kind == "whole" and found.step < saved else found.kind] += 1
        shutil.rmtree(folder)
        folder.mkdir()
        synced = fsyncs(python, script, folder)
        damage = damaged(python, script, folder)
    whole, refused, wrong = (counts[kind] for kind in ("whole", "refused", "wrong"))
    bad = whole < KILLS or damage != "noticed, goes back to the one before"
    return f"{whole} | {refused} | {wrong} | {damage} | {synced}", bad


@contextmanager
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
        yield Path(folder) / "kept"


def child(python: str, script: str, folder: Path, order: str, *before: str) -> subprocess.Popen[str]:
    command = [*before, python, "-c", COMMON + script + SERVE, str(folder), order]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def killed(python: str, script: str, folder: Path, dice: random.Random) -> int:
    """Saves until it is killed, at a moment of some save after the second; the last step that it said was saved."""
    process = child(python, script, folder, "save")
    assert process.stdout is not None
    assert process.stderr is not None
    began = last = 0.0
    for _ in range(3):
        if not process.stdout.readline():
            raise RuntimeError((process.stderr.read().strip().splitlines() or ["it ended"])[-1][:120])
        began, last = last, time.monotonic()
    time.sleep(dice.random() * 2 * (last - began))
    process.kill()
    said = process.stdout.read().split()
    process.wait()
    return int(said[-1]) if said else 3


def read(python: str, script: str, folder: Path) -> Found:
    out, _ = child(python, script, folder, "load").communicate()
    if not out.strip():
        return Found("refused")
    values = json.loads(out.splitlines()[-1])
    return Found("whole", int(values[0])) if len(values) == 1 and values[0] >= 1 else Found("wrong")


def damaged(python: str, script: str, folder: Path) -> str:
    if (found := read(python, script, folder)) != Found("whole", 3):
        raise RuntimeError(f"undamaged it reads {found.kind}")
    largest = max((file for file in folder.rglob("*") if file.is_file()), key=lambda f: (f.stat().st_size, str(f)))
    body = bytearray(largest.read_bytes())
    body[len(body) // 2] ^= 1
    largest.write_bytes(body)
    found = read(python, script, folder)
    if found == Found("whole", 2):
        return "noticed, goes back to the one before"
    return "noticed, refused" if found.kind == "refused" else "**read as if nothing were**"


def fsyncs(python: str, script: str, folder: Path) -> str:
    """Saves three times and ends by itself; whether anything was asked to be on the disk."""
    trace, calls = folder.with_name("trace"), "fsync,fdatasync,sync_file_range,sync,syncfs"
    strace = ["strace", "-f", "-qq", "-e", f"trace={calls}", "-o", str(trace)] if shutil.which("strace") else []
    child(python, script, folder, "three", *strace).communicate()
    if not strace:
        return "not seen: no strace"
    return "yes" if "(" in trace.read_text() else "no"


if __name__ == "__main__":
    sys.exit(main())
