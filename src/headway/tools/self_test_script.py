"""The program of `headway doctor --deep`: a short training on the target's own device, and what it measured.

The first attempt is killed in the middle. The last one repeats the training without Headway and compares the bits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import headway
from headway.training import Loader
from headway.training.run import Run

SAMPLES, BATCH, EPOCHS, SIZE = 64, 16, 3, 256
MEGABYTES = 64


def make_model() -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU(), nn.LayerNorm(SIZE), nn.Linear(SIZE, 1))


def train(run: Run) -> nn.Module:
    model = run.place(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = Loader(list(samples()), BATCH, seed=5)
    run.restore(model=model, optimizer=optimizer, data=loader)
    for _ in run.epochs(EPOCHS):
        for x in run.steps(loader):
            loss = (model(x) - 1).square().mean()
            run.step(loss, optimizer)
            run.log(loss=loss)
    return model


def train_without_headway(device: torch.device) -> nn.Module:
    model = make_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = Loader(list(samples()), BATCH, seed=5)
    for epoch in range(EPOCHS):
        for step in range(len(loader)):
            optimizer.zero_grad()
            (model(loader.batch(epoch, step, 0, 1).to(device)) - 1).square().mean().backward()
            optimizer.step()
    return model


def samples() -> Tensor:
    return torch.rand(SAMPLES, SIZE, generator=torch.Generator().manual_seed(3))


def same_bits(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a.cpu(), b.cpu()) for a, b in pairs)


def seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Time the work, once it has run already."""
    for _ in range(2):
        began = time.perf_counter()
        work()
        if device.type != "cpu":
            torch.get_device_module(device).synchronize()
    return time.perf_counter() - began


def bandwidths(run: Run) -> dict[str, float]:
    """Measure copies to and from the device, and the all-reduce of all ranks, in GB/s."""
    count, device = MEGABYTES << 18, run.device
    host = torch.zeros(count)
    on_device = torch.zeros(count, device=device)
    works: dict[str, Callable[[], Any]] = {}
    if device.type != "cpu":
        works["host to device"] = lambda: on_device.copy_(host)
        works["device to host"] = lambda: host.copy_(on_device)
        if device.type != "mps":
            pinned = torch.zeros(count, pin_memory=True)
            works["pinned to device"] = lambda: on_device.copy_(pinned, non_blocking=True)
    else:
        works["memory"] = lambda: on_device.copy_(host)
    if run.world.size > 1:
        works["all-reduce"] = lambda: torch.distributed.all_reduce(on_device)
    return {name: round(MEGABYTES / 1000 / seconds(work, device), 2) for name, work in works.items()}


def precisions(device: torch.device) -> dict[str, dict[str, float]]:
    """Multiply matrices in each precision: time, and the largest difference from float64."""
    size = 1024 if device.type != "cpu" else 256
    a, b = (torch.randn(size, size, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    exact = (a.double() @ b.double()).float()
    x, y = a.to(device), b.to(device)
    found: dict[str, dict[str, float]] = {}
    for name, dtype in {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}.items():
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        try:
            with torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None):
                took = seconds(lambda: x @ y, device)
                error = float(((x @ y).float().cpu() - exact).abs().max())
        except RuntimeError:  # the device lacks this precision
            continue
        found[name] = {"ms": round(1000 * took, 3), "error": round(error, 5)}
    torch.set_float32_matmul_precision("highest")
    return found


def main() -> None:
    run = headway.start()
    model = train(run)
    digest = torch.stack([value.double().sum().cpu() for value in model.state_dict().values()])
    alike = bool((run.total(digest) == digest * run.world.size).all())
    report = {
        "device": run.device.type,
        "ranks": run.world.size,
        "environment": run._checkpoints.environment,
        "ranks alike": alike,
        "same bits without Headway": same_bits(model, train_without_headway(run.device))
        if run.world.size == 1
        else None,
        "bandwidth": bandwidths(run),
        "precision": precisions(run.device),
    }
    run.sample("self-test.json", json.dumps(report).encode())
    run.finish()


if __name__ == "__main__":
    main()
