"""A training stopped in the middle of an epoch and resumed, against an uninterrupted one: how much weights differ.

Each framework trains the same small network (dropout, a shuffled loader, random noise per item) with its own documented
way to save and resume, in a separate process per part, and is compared with its own uninterrupted run. 0 is exact.
Accelerate skips to the position with `skip_first_batches`, Fabric with its own count, Lightning by `ckpt_path`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import Absent, environment

STEPS_AN_EPOCH, EPOCHS, STOP = 20, 3, 27
ROOT = Path(__file__).resolve().parents[1]

COMMON = f"""
import os, sys, warnings, logging
warnings.filterwarnings("ignore"); logging.disable(logging.WARNING)
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from safetensors.torch import save_file
torch.set_num_threads(1)
mode, folder, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
AN_EPOCH, EPOCHS, STOP = {STEPS_AN_EPOCH}, {EPOCHS}, {STOP}
class Points(Dataset):
    fingerprint = "points"
    def __len__(self): return AN_EPOCH * 8
    def __getitem__(self, index):
        x = torch.sin(torch.arange(16.0) * (index + 1))
        return x + 0.1 * torch.randn(16), x.sum()
def net(): return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1))
def adam(model): return torch.optim.AdamW(model.parameters(), lr=0.01)
def loss_of(model, x, y): return ((model(x).squeeze(-1) - y) ** 2).mean()
def loader(): return DataLoader(Points(), 8, shuffle=True, num_workers=workers)
def done(model): save_file(dict(model.state_dict()), f"{{folder}}/{{mode}}.safetensors")
"""
HEADWAY = """
import headway
from headway.runtime import Loader
os.environ["HEADWAY_RUN_URL"] = f"{folder}/run-{'straight' if mode == 'straight' else 'broken'}"
if mode == "stopped": os.environ["HEADWAY_STEP_LIMIT"] = str(STOP)
run = headway.start()
feed = Loader(Points(), 8, workers=workers)
model = run.place(net())
optimizer = adam(model)
run.restore(model=model, optimizer=optimizer, data=feed)
for _ in run.epochs(EPOCHS):
    for x, y in run.steps(feed):
        run.step(loss_of(model, x, y), optimizer)
done(model)
"""
FABRIC = """
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=1)
fabric.seed_everything(7, workers=True)
plain = net()
model, optimizer = fabric.setup(plain, adam(plain))
data = fabric.setup_dataloaders(loader())
state = {"model": model, "optimizer": optimizer, "step": 0}
if mode == "resumed": fabric.load(f"{folder}/state.ckpt", state)
for epoch in range(state["step"] // AN_EPOCH, EPOCHS):
    first = state["step"] - epoch * AN_EPOCH
    for number, (x, y) in enumerate(data):
        if number < first: continue
        fabric.backward(loss_of(model, x, y)); optimizer.step(); optimizer.zero_grad()
        state["step"] += 1
        if mode == "stopped" and state["step"] == STOP:
            fabric.save(f"{folder}/state.ckpt", state); sys.exit()
done(plain)
"""
ACCELERATE = """
from accelerate import Accelerator
from accelerate.utils import set_seed
accelerator = Accelerator(cpu=True)
set_seed(7)
plain = net()
model, optimizer, data = accelerator.prepare(plain, adam(plain), loader())
step = 0
if mode == "resumed": accelerator.load_state(f"{folder}/state"); step = STOP
for epoch in range(step // AN_EPOCH, EPOCHS):
    first = step - epoch * AN_EPOCH
    for x, y in accelerator.skip_first_batches(data, first) if first else data:
        accelerator.backward(loss_of(model, x, y)); optimizer.step(); optimizer.zero_grad()
        step += 1
        if mode == "stopped" and step == STOP:
            accelerator.save_state(f"{folder}/state"); sys.exit()
done(plain)
"""
LIGHTNING = """
import lightning as L
L.seed_everything(7, workers=True)
class Module(L.LightningModule):
    def __init__(self): super().__init__(); self.net = net()
    def training_step(self, batch, number): return loss_of(self.net, *batch)
    def configure_optimizers(self): return adam(self.net)
module = Module()
steps = STOP if mode == "stopped" else EPOCHS * AN_EPOCH
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = L.Trainer(accelerator="cpu", devices=1, max_steps=steps, default_root_dir=folder, **quiet)
trainer.fit(module, loader(), ckpt_path=f"{folder}/state.ckpt" if mode == "resumed" else None)
if mode == "stopped": trainer.save_checkpoint(f"{folder}/state.ckpt")
done(module.net)
"""
CONTENDERS = {"Headway": HEADWAY, "Lightning": LIGHTNING, "Fabric": FABRIC, "Accelerate": ACCELERATE}


def main() -> int:
    try:
        rivals = str(environment("step-overhead/rivals", "accelerate", "lightning"))
    except Absent as why:
        print(f"Lightning, Fabric and Accelerate take no part: {why}\n")
        rivals = ""
    print("| largest difference of a weight | no loader workers | 2 loader workers |\n| --- | ---: | ---: |")
    broken = 0
    for name, script in CONTENDERS.items():
        python = sys.executable if name == "Headway" else rivals
        if not python:
            continue
        found = [difference(python, script, workers) for workers in (0, 2)]
        print(f"| {name} | {' | '.join(found)} |", flush=True)
        broken += name == "Headway" and found != ["0", "0"]
    return broken


def difference(python: str, script: str, workers: int) -> str:
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
        for mode in ("straight", "stopped", "resumed"):
            env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
            words = [python, "-c", COMMON + script, mode, folder, str(workers)]
            done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode not in (0, 143):
                said = done.stderr.strip().splitlines()
                return f"fails: {said[-1][:80] if said else done.returncode}"
        return _compared(Path(folder))


def _compared(folder: Path) -> str:
    from safetensors.torch import load_file

    straight, resumed = (load_file(folder / f"{mode}.safetensors") for mode in ("straight", "resumed"))
    most: Any = max((straight[name] - resumed[name]).abs().max().item() for name in straight)
    return "0" if most == 0 else f"{most:.2g}"


if __name__ == "__main__":
    sys.exit(main())
