"""A small model that trains for real, with dropout, and says what its weights are in the end."""

from __future__ import annotations

from headway.launcher.lifecycle import RunHandle

SCRIPT = """
import hashlib, os, time
import torch
import headway
from headway.runtime import Loader
from torch.utils.data import TensorDataset

run = headway.start(config={"pause_s": 0.0})
dice = torch.Generator().manual_seed(1)
points = torch.randn(144, 4, generator=dice)
feed = Loader(TensorDataset(points, points.sum(1)), 12)
model = run.place(torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
run.restore(model=model, optimizer=optimizer, data=feed)
for epoch in run.epochs(3):
    for x, y in run.steps(feed):
        time.sleep(run.config["pause_s"])
        loss = ((model(x).squeeze(-1) - y) ** 2).sum()
        run.step(optimizer, loss_sum=loss, weight=len(x))
        run.log(loss=loss / len(x))
        print(f"step {run.global_step} on {os.uname().nodename}")
run.finish()
state = b"".join(t.detach().numpy().tobytes() for t in model.state_dict().values())
print("digest", hashlib.sha256(state).hexdigest())
"""


def digest(hold: RunHandle) -> str:
    (line,) = [line.text for line in hold.logs(rank=0) if line.text.startswith("digest ")]
    return line


def steps(hold: RunHandle) -> int:
    return sum(line.text.startswith("step ") for line in hold.logs(rank=0))
