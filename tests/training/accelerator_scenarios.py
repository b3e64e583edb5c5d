"""What runs on the fake accelerator, in a process of its own, and partly on the CPU, for comparison."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import headway
from headway.core.errors import BadInput, RunFailed
from headway.training import Loader, accumulation
from headway.training.distributed.process_group import ProcessGroup
from headway.training.run import Run
from tests.training import fake_accelerator as fake

X = torch.arange(128.0).view(32, 4) / 64


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def begin(folder: str, **keys: Any) -> tuple[Run, Net, torch.optim.Optimizer, Loader]:
    run = headway.start(folder, seed=3, checkpoint={"every": "2 steps"}, **keys)
    model = run.place(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = Loader(list(X), 8)
    run.restore(model=model, optimizer=optimizer, data=loader)
    return run, model, optimizer, loader


def train(run: Run, model: Net, optimizer: torch.optim.Optimizer, loader: Loader, stop_at: int = 0) -> list[Any]:
    """Two epochs; the ledger of every step, and what the forward computed in."""
    ledgers: list[Any] = []
    for _ in run.epochs(2):
        for x in run.steps(loader):
            fake.LEDGER.clear()
            with run.autocast():
                out = model(x)
                loss = (out.float() - 1).square().mean()
            run.step(loss, optimizer, clip=1.0)
            run.log(loss=loss)
            ledgers.append({**fake.LEDGER, "dtype": str(out.dtype), "batch": x.device.type})
            if run.global_step == stop_at:
                run._session.preemption.stop_requested = True
    run.finish()
    return ledgers


def weights(model: nn.Module) -> list[float]:
    return [value for parameter in model.state_dict().values() for value in parameter.flatten().tolist()]


def end(run: Run) -> None:
    run._boundary.close()


def straight() -> Any:
    run, model, optimizer, loader = begin("straight")
    ledgers = train(run, model, optimizer, loader)
    placed = sorted({str(tensor.device) for tensor in model.state_dict().values()})
    end(run)
    return {"device": str(run.device), "placed": placed, "ledgers": ledgers, "weights": weights(model)}


def resumed() -> Any:
    parts = begin("resumed")
    stopped = False
    try:
        train(*parts, stop_at=3)
    except SystemExit:
        stopped = True
    end(parts[0])
    run, model, optimizer, loader = begin("resumed")
    at = run.global_step
    train(run, model, optimizer, loader)
    end(run)
    return {"stopped": stopped, "resumed at": at, "weights": weights(model)}


def precision(name: str) -> Any:
    run, model, optimizer, loader = begin(name, precision=name)
    ledgers = train(run, model, optimizer, loader)
    scale = run._precision.scaler and float(run._precision.scaler.get_scale())
    end(run)
    finite = all(torch.isfinite(torch.tensor(weights(model))).tolist())
    return {
        "dtypes": sorted({each["dtype"] for each in ledgers}),
        "scale": scale,
        "finite": finite,
        "last": ledgers[-1],
    }


def bad_batches(policy: str) -> Any:
    run, model, optimizer, _ = begin(f"nan-{policy}", config={"nan": policy})
    x = X.clone()
    x[9] = float("nan")
    failed = ""
    try:
        for batch in run.steps(Loader(list(x), 8, shuffle=False)):
            run.step((model(batch) - 1).square().mean(), optimizer)
    except RunFailed as error:
        failed = str(error)
    end(run)
    return {
        "failed": failed,
        "steps": run.global_step,
        "finite": bool(torch.isfinite(torch.tensor(weights(model))).all()),
    }


def out_of_memory() -> Any:
    run, model, optimizer, loader = begin("memory", accumulate="auto")
    fake.MEMORY_LIMIT.append(60)  # of the 64 activations of a whole batch
    told: list[Any] = []
    run._session.control.event = lambda kind, **details: told.append({"kind": kind, **details})  # type: ignore[method-assign]
    try:
        train(run, model, optimizer, loader)
        error: BaseException | None = None
    except RuntimeError as found:
        error = found
        run._report_failure(found)
    fake.MEMORY_LIMIT.clear()
    end(run)
    assert error is not None
    return {"told": told, "hint": accumulation.out_of_memory_hint(error)}


def generators() -> Any:
    """Random numbers on the device depend on the step alone."""
    run, *_ = begin("generators")
    run._seeder.reseed(2, 5)
    first = torch.rand(4, device=run.device).tolist()
    torch.rand(100, device=run.device)
    run._seeder.reseed(2, 5)
    again = torch.rand(4, device=run.device).tolist()
    run._seeder.reseed(2, 6)
    end(run)
    return {"same": first == again, "other": first != torch.rand(4, device=run.device).tolist()}


def several_ranks() -> Any:
    """Two ranks, of which this is the first: collectives are no-ops, so only its own host is watched."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ |= {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    together = ProcessGroup.run_together
    ProcessGroup.run_together = lambda _, work: work()  # type: ignore[assignment, return-value, method-assign]
    try:
        run, model, optimizer, loader = begin("ranks")
        ledgers = []
        for x in run.steps(loader):
            fake.LEDGER.clear()
            loss = (model(x) - 1).square().mean()
            run.step(loss, optimizer, clip=1.0)
            run.log(loss=loss)
            ledgers.append(dict(fake.LEDGER))
        return {"ledgers": ledgers}
    finally:
        ProcessGroup.run_together = together  # type: ignore[method-assign]
        dist.destroy_process_group()
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            del os.environ[name]


def second_device() -> Any:
    os.environ |= {"RANK": "1", "WORLD_SIZE": "1", "LOCAL_RANK": "1"}
    from headway.training import devices, rank_info

    chosen = devices.choose_device(rank_info.topology_from_env(os.environ))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        del os.environ[name]
    refused = ""
    try:
        devices.collective_backend(chosen)
    except BadInput as error:
        refused = str(error)
    return {"device": str(chosen), "refused": refused}


SCENARIOS: dict[str, Callable[[], Any]] = {
    "straight": straight,
    "resumed": resumed,
    "bf16": lambda: precision("bf16"),
    "fp16": lambda: precision("fp16"),
    "nan skip": lambda: bad_batches("skip"),
    "nan stop": lambda: bad_batches("stop"),
    "out of memory": out_of_memory,
    "generators": generators,
    "several ranks": several_ranks,
    "second device": second_device,
}


def run_all(folder: Path, on: str) -> None:
    """Write FOLDER/results.json: one entry per scenario."""
    os.chdir(folder)
    if on != "cpu":
        fake.install(devices=2)
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, scenario in SCENARIOS.items():
        if on == "cpu" and name not in ("straight", "resumed"):
            continue
        try:
            found[name] = scenario()
        except BaseException:  # noqa: BLE001 - the tests show it
            found[name] = {"error": traceback.format_exc()}
    Path("results.json").write_text(json.dumps(found))
    os._exit(0)  # the scenarios have closed their runs
