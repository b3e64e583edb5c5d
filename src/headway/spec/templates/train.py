"""Train a classifier that tells which of two spirals a point belongs to, in a plain PyTorch loop.

`run` takes care of checkpoints, preemption and ranks. Start it with `headway run`, or with `python train.py`, which
uses the settings below.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import headway


def spirals(count: int, seed: int) -> TensorDataset:
    """Return points of two interleaved spirals with a little noise, and the spiral of each."""
    dice = torch.Generator().manual_seed(seed)
    spiral = torch.arange(count) % 2
    radius = torch.rand(count, generator=dice)
    angle = 7 * radius + torch.pi * spiral
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return TensorDataset(points + 0.02 * torch.randn(points.shape, generator=dice), spiral)


def loss_and_hits(model: nn.Module, points: Tensor, spiral: Tensor) -> tuple[Tensor, Tensor]:
    guesses = model(points)
    return nn.functional.cross_entropy(guesses, spiral), (guesses.argmax(1) == spiral).sum()


run = headway.start(config={"epochs": 10, "batch_size": 64, "lr": 0.01, "width": 64})
epochs, batch_size, lr, width = (run.config[name] for name in ("epochs", "batch_size", "lr", "width"))

train = headway.Loader(spirals(4096, seed=1), batch_size)
val = headway.Loader(spirals(1024, seed=2), 256, shuffle=False)
model = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))
model = run.place(model)  # on this rank's device, with the same values on all ranks
optimizer = torch.optim.Adam(model.parameters(), lr=lr)
run.restore(model=model, optimizer=optimizer, data=train)  # the newest good checkpoint, or a fresh start

for _epoch in run.epochs(epochs):
    for points, spiral in run.steps(train):  # also handles checkpoints, preemption and the budget
        with run.autocast():  # in the job's precision
            loss, _ = loss_and_hits(model, points, spiral)
        run.step(loss, optimizer)  # backward, gradients of all ranks, update
        run.log(loss=loss)
    with torch.no_grad():
        hits = sum(loss_and_hits(model, points, spiral)[1] for points, spiral in run.evaluating(val))
    run.score({"accuracy": run.total(hits) / len(val.dataset)}, best="accuracy")

run.finish()
