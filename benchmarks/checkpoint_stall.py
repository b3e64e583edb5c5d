"""How long a checkpoint blocks training, against the time to copy the state in memory. Promised: at most 1.3 ×.

A model with Adam's state, about 300 MB. Also shown: how much slower steps are while the background write runs, and
how much memory snapshots add. Promised: at most twice the state, and once if the store keeps up.

torchsnapshot and Lightning (with its AsyncCheckpointIO) are installed in separate environments under
~/.cache/headway-bench and measured in their own processes, against a copy in memory there.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import Absent, environment, note

ROUNDS = 7
WIDTH, LAYERS = 1024, 24  # 24 × (4 MB + 4 KB) of weights, three times over with Adam's moments

_run: list[Any] = []
ROOT = Path(__file__).resolve().parents[1]

# Each prints, for every round, the seconds of a copy in memory and of the stall.
SNAPSHOT = """
import shutil, sys, tempfile
from torchsnapshot import Snapshot
from benchmarks.checkpoint_stall import ROUNDS, copy_of, timed, trained
model, optimizer = trained()
copy, folder = copy_of(model, optimizer), tempfile.mkdtemp(prefix="headway-bench-")
for number in range(ROUNDS + 1):
    pending = []
    take = lambda: pending.append(Snapshot.async_take(f"{folder}/{number}", {"model": model, "optimizer": optimizer}))
    print(timed(copy), timed(take), flush=True)
    pending[0].wait()
    shutil.rmtree(f"{folder}/{number}")
shutil.rmtree(folder)
"""
LIGHTNING = """
import logging, os, shutil, tempfile, warnings
warnings.filterwarnings("ignore"); logging.disable(logging.WARNING)
import lightning as L, torch
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from benchmarks.checkpoint_stall import ROUNDS, WIDTH, copy_of, net, timed
folder = tempfile.mkdtemp(prefix="headway-bench-")
class Module(L.LightningModule):
    def __init__(self):
        super().__init__(); self.net = net()
    def training_step(self, x, number): return self.net(x).sum()
    def configure_optimizers(self): return torch.optim.Adam(self.parameters())
class Measure(L.Callback):
    def on_train_batch_end(self, trainer, module, *rest):
        copy, path = copy_of(module.net, trainer.optimizers[0]), f"{folder}/{trainer.global_step}.ckpt"
        print(timed(copy), timed(lambda: trainer.save_checkpoint(path)), flush=True)
        del copy
        for executor in [getattr(trainer.strategy.checkpoint_io, "_executor", None)]:
            executor and executor.submit(int).result()  # behind the write: one at a time
        os.unlink(path)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
ours = dict(callbacks=[Measure()], plugins=[AsyncCheckpointIO()])
trainer = L.Trainer(accelerator="cpu", max_steps=ROUNDS + 1, **ours, **quiet)
trainer.fit(Module(), torch.utils.data.DataLoader([torch.randn(1, WIDTH)] * (ROUNDS + 1), batch_size=None))
shutil.rmtree(folder, ignore_errors=True)
"""
RIVALS = {
    "torchsnapshot async_take": ("torchsnapshot", SNAPSHOT),
    "Lightning, AsyncCheckpointIO": ("lightning", LIGHTNING),
}


def main() -> int:
    warnings.filterwarnings("ignore")
    import torch

    model, optimizer = trained()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    tensors = [tensor for tensor in leaves(state) if isinstance(tensor, torch.Tensor)]
    size = sum(tensor.nbytes for tensor in tensors)
    folder = Path(tempfile.mkdtemp(prefix="headway-bench-"))
    copies = [torch.zeros_like(tensor) for tensor in tensors]
    cases: dict[str, Callable[[int], float]] = {
        "copy in memory (the floor)": lambda n: timed(lambda: torch._foreach_copy_(copies, tensors)),
        "Headway": headway(model, optimizer, folder),
        "torch.save": lambda n: timed(lambda: torch.save(state, folder / "state.pt")),
        "safetensors": safetensors(state, folder),
    }
    if importlib.util.find_spec("torch.distributed.checkpoint"):
        cases["torch.distributed.checkpoint.save"] = dcp_waiting(state, folder)
        cases["torch.distributed.checkpoint.async_save"] = dcp(state, folder)
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(ROUNDS + 1):
        for name, case in cases.items():
            stall = case(number)
            if number:
                taken[name].append(stall)
    broken = show(taken, size)
    rivals()
    slow_down(model, folder)
    broken += memory(size)
    shutil.rmtree(folder, ignore_errors=True)
    return broken


def show(taken: dict[str, list[float]], size: int) -> int:
    floor = statistics.median(next(iter(taken.values())))
    print(f"{size / 1e6:.0f} MB of state\n\n| | stall (ms) | × the floor |\n| --- | ---: | ---: |")
    for name, stalls in taken.items():
        median = statistics.median(stalls)
        print(f"| {name} | {median * 1e3:.0f} | {median / floor:.2f} |")
        note("stall for a checkpoint", name, median * 1e3, "ms", limit="a copy in memory", floor=floor * 1e3)
    print()
    ratios = [ours / copy for ours, copy in zip(taken["Headway"], next(iter(taken.values())), strict=True)]
    if statistics.median(ratios) > 1.3:
        print("broken promise: over 1.3 ×\n")
        return 1
    return 0


def rivals() -> None:
    print("| in a process of its own | stall (ms) | × the floor there |\n| --- | ---: | ---: |")
    for name, (package, script) in RIVALS.items():
        try:
            env = {**os.environ, "PYTHONPATH": str(ROOT)}
            command = [str(environment(f"checkpoint-stall/{package}", package)), "-c", script]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=env, timeout=300)
        except (Absent, subprocess.SubprocessError, OSError) as error:
            said = str(getattr(error, "stderr", "") or error).strip().splitlines()
            print(f"| {name} | takes no part: {said[-1][:100] if said else error} | |")
            continue
        rounds = [tuple(map(float, line.split())) for line in done.stdout.splitlines()[1:]]
        ratio = statistics.median(stall / copy for copy, stall in rounds)
        print(f"| {name} | {statistics.median(stall for _, stall in rounds) * 1e3:.0f} | {ratio:.2f} |")
    print(flush=True)


def copy_of(model: Any, optimizer: Any) -> Callable[[], object]:
    """The floor: what any snapshot must at least do."""
    import torch

    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    tensors = [leaf for leaf in leaves(state) if isinstance(leaf, torch.Tensor)]
    copies = [torch.zeros_like(tensor) for tensor in tensors]
    return lambda: torch._foreach_copy_(copies, tensors)


def slow_down(model: Any, folder: Path) -> None:
    """Steps alone, and steps while a thread hashes and writes the state."""
    import torch

    x = torch.randn(64, WIDTH)
    run = _run.pop()
    keeping = run._checkpoints
    alone = [timed(lambda: model(x).sum().backward()) for _ in range(30)]
    during: list[float] = []
    for number in range(3):
        keeping.position.step = 1000 + number
        keeping.save()
        while keeping.writer.busy:
            during.append(timed(lambda: model(x).sum().backward()))
    run._close()
    ratio = statistics.median(during) / statistics.median(alone)
    print(f"Steps during the write take {ratio:.2f} × as long as without it ({len(during)} of them)\n")


def memory(size: int) -> int:
    """In a process of its own: what the first snapshot, and one more that has to wait, add to the peak."""
    script = (
        "import sys, threading; sys.argv = ['x']\n"
        "from benchmarks.checkpoint_stall import trained, headway_run\n"
        "def peak(): return int(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]) / 1e3\n"
        "model, optimizer = trained(); run = headway_run(model, optimizer); keeping = run._checkpoints\n"
        "write, gate = run._session.store.write, threading.Event()\n"
        "before = peak(); keeping.position.step = 1; keeping.save(); keeping.writer.drain(); first = peak()\n"
        "run._session.store.write = lambda *a, **o: (gate.wait(), write(*a, **o))[1]\n"
        "for n in range(2, 9): keeping.position.step = n; keeping.save()\n"
        "second = peak(); gate.set(); print(first - before, second - before)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "HEADWAY_RUN_URL": f"{folder}/run"}
        done = subprocess.run([sys.executable, "-c", script], env=env, check=True, capture_output=True, text=True)
    first, second = (float(word) * 1.024 / (size / 1e6) for word in done.stdout.split())
    print(f"Memory added by a snapshot: {first:.2f} × the state; while the store hangs: {second:.2f} ×\n")
    if second > 2.1:  # a tenth for what is not a snapshot
        print("broken promise: more than two snapshots\n")
    return int(second > 2.1)


def headway_run(model: Any, optimizer: Any) -> Any:
    import headway

    run = headway.start()
    run.restore(model=model, optimizer=optimizer)
    return run


def net() -> Any:
    from torch import nn

    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def trained() -> tuple[Any, Any]:
    import torch

    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(1, WIDTH)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in leaves(each)]
    if isinstance(value, list | tuple):
        return [leaf for each in value for leaf in leaves(each)]
    return [value]


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def headway(model: Any, optimizer: Any, folder: Path) -> Callable[[int], float]:
    """All that the training thread does for a checkpoint; the write behind it is done before the next."""
    os.environ["HEADWAY_RUN_URL"] = str(folder / "run")
    run = headway_run(model, optimizer)
    keeping = run._checkpoints
    _run.append(run)

    def stall(number: int) -> float:
        keeping.position.step = number + 1
        took = timed(keeping.save)
        keeping.writer.drain()
        return took

    return stall


def safetensors(state: Any, folder: Path) -> Callable[[int], float]:
    """Tensors alone: what else a state holds, its user would have to keep elsewhere."""
    import torch
    from safetensors.torch import save_file

    tensors = {str(number): leaf for number, leaf in enumerate(leaves(state)) if isinstance(leaf, torch.Tensor)}
    return lambda number: timed(lambda: save_file(tensors, folder / "state.safetensors"))


def dcp_waiting(state: Any, folder: Path) -> Callable[[int], float]:
    from torch.distributed.checkpoint.state_dict_saver import save

    def stall(number: int) -> float:
        took = timed(lambda: save(state, checkpoint_id=folder / f"waited-{number}"))
        shutil.rmtree(folder / f"waited-{number}")
        return took

    return stall


def dcp(state: Any, folder: Path) -> Callable[[int], float]:
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict_saver import async_save

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=0, world_size=1)

    def stall(number: int) -> float:
        began = time.perf_counter()
        waiting = async_save(state, checkpoint_id=folder / f"dcp-{number}")
        took = time.perf_counter() - began
        waiting.result()  # type: ignore[union-attr]
        shutil.rmtree(folder / f"dcp-{number}")
        return took

    return stall


if __name__ == "__main__":
    sys.exit(main())
