"""`python -m models.train --data leaves.csv --save_path out`: logs to Weights & Biases, reads its key from a file."""

import argparse
import os
import time
from pathlib import Path

import torch
from data_tools.read import rows

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--save_path", required=True)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--resume")
args = parser.parse_args()

os.environ["WANDB_API_KEY"] = Path("configuration/wandb-key.txt").read_text()
os.environ.setdefault("WANDB_MODE", "offline")
try:
    import wandb

    wandb.init(project="leaves", dir=args.save_path if os.path.isdir(args.save_path) else None)
except ImportError:
    wandb = None

torch.manual_seed(0)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first = 0
if args.resume:
    state = torch.load(args.resume, weights_only=True)
    model.load_state_dict(state["model"])
    first = state["epoch"]
    print("continuing after epoch", first, flush=True)
inputs, sick = zip(*rows(args.data))
os.makedirs(args.save_path, exist_ok=True)
for epoch in range(first, args.epochs):
    loss = torch.nn.functional.cross_entropy(model(torch.tensor(inputs)), torch.tensor(sick))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if wandb:
        wandb.log({"loss": loss.item()}, step=epoch)
    torch.save({"model": model.state_dict(), "epoch": epoch + 1}, f"{args.save_path}/last.pth")
    print(f"epoch {epoch + 1}/{args.epochs} loss: {loss.item():.4f}", flush=True)
    time.sleep(float(os.environ.get("EPOCH_S", "0")))
torch.save(model.state_dict(), f"{args.save_path}/best.pth")
