"""Fit a line: the training loop, the evaluation, the bundle and the prediction."""

from __future__ import annotations

import torch
from torch.nn import functional

from headway.artifacts.evaluate import Evaluation
from headway.bundle import BundleParts
from headway.core.errors import BadInput
from headway.metrics.samples import of_values
from headway.rundir.history import BestScores
from headway.spec.loading import from_plain, to_plain

from headway_workbench.config import Config

SEEDS = {"train": 1, "val": 2, "test": 3}


def points(cfg, split):
    """Draw a split, the same on every machine."""
    random = torch.Generator().manual_seed(SEEDS[split])
    x = torch.rand(cfg.points, 1, generator=random) * 2 - 1
    return x, cfg.slope * x + 0.5 + 0.01 * torch.randn(cfg.points, 1, generator=random)


def train(run, cfg):
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*points(cfg, "train")), batch_size=32)
    model = run.place(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr)
    best = BestScores()
    run.on_export(lambda: bundle(model, cfg, run.job, best))
    run.restore(model=model, optimizer=optimizer, best=best, data=data)
    for _ in run.epochs(cfg.epochs):
        for x, y in run.steps(data):
            loss = functional.mse_loss(model(x), y)
            run.step(loss, optimizer)
            run.log(loss=loss)
        with torch.no_grad():
            x, y = points(cfg, "val")
            found = {"error": float((model(x) - y).abs().mean())}
        if run.score(found, best="error", higher=False):
            best.update(found)
    run.finish()


def rebuild(cfg, state):
    model = torch.nn.Linear(1, 1)
    model.load_state_dict(dict(state))
    return model.eval()


def bundle(model, cfg, job, scores):
    weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    return BundleParts(
        recipe="line", name=job.export.name or job.name, config=to_plain(cfg), weights=weights, metrics=dict(scores)
    )


def evaluate(model, cfg, data, split, *, cache=None):
    x, y = points(cfg, split)
    with torch.no_grad():
        errors = (model(x) - y).abs().flatten().tolist()
    mean = sum(errors) / len(errors)
    return Evaluation(data="points", count=len(errors), metrics={"error": mean}, samples={"error": of_values(errors)})


class Predictor:
    """Maps numbers, as text, to the line's values."""

    def __init__(self, bundle):
        self.config = from_plain(bundle.config, Config, where=f"{bundle.url}/config.json")
        self.model = rebuild(self.config, bundle.weights())

    def __call__(self, inputs):
        try:
            x = torch.tensor([[float(text)] for text in inputs])
        except ValueError as error:
            raise BadInput(str(error), fix="give numbers, as in  headway predict last 0.5") from None
        with torch.no_grad():
            return [{"input": text, "text": f"{y:.3f}"} for text, y in zip(inputs, self.model(x)[:, 0].tolist())]
