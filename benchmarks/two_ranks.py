"""The cost of a step of two ranks with fixed buckets, against torch's DistributedDataParallel on the same ranks.

Both train the same model over the same gloo connections, take turns of one step, in a random order for each round, and
log the loss every step. Headway also reduces its stop and save flags, averages the logged loss over ranks, and seeds
every generator.
"""

from __future__ import annotations

import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import note

# width, rounds
SIZES = {"small (0.1 MB of gradients)": (64, 400), "large (38 MB of gradients)": (1024, 60)}
LONGEST = 1_000_000


def main() -> int:
    broken = 0
    for name, (width, rounds) in SIZES.items():
        with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
            broken += table(name, *ranks(width, rounds, folder))
    return broken


def table(name: str, ddp: list[float], ours: list[float]) -> int:
    print(f"{name}\n\n| | ms a step | × DDP |\n| --- | ---: | ---: |")
    base = statistics.median(ddp)
    ratio = statistics.median(one / other for one, other in zip(ours, ddp, strict=True))
    print(f"| DDP | {base * 1e3:.2f} | 1.00 |\n| Headway | {statistics.median(ours) * 1e3:.2f} | {ratio:.2f} |\n")
    note(name, "DDP", base * 1e3, "ms a step")
    note(name, "Headway", base * ratio * 1e3, "ms a step", limit="DDP on the same wires", floor=base * 1e3)
    if ratio > 1.05:
        print("more than 5 % over DDP\n")
    return int(ratio > 1.05)


def ranks(width: int, rounds: int, folder: str, *, world: int = 2, rows: int = 8) -> tuple[list[float], list[float]]:
    """Seconds of each of DDP's steps, and of Headway's, as rank 0 saw them; every rank learns from so many rows."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {
        **os.environ,
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1",
    }
    common |= {"GLOO_SOCKET_IFNAME": "lo", "HEADWAY_RUN_URL": f"{folder}/run"}
    common["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), common.get("PYTHONPATH", "")])
    code = f"from benchmarks.two_ranks import rank; rank({width}, {rounds}, {rows})"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**common, "RANK": str(number), "LOCAL_RANK": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for number in range(world)
    ]
    printed, *_ = [process.communicate(timeout=600)[0] for process in started]
    ddp, ours = ([float(word) for word in line.split()] for line in printed.strip().splitlines())
    return ddp, ours


def rank(width: int, rounds: int, rows: int) -> None:
    """Both contenders in turn, on one rank. Alone, DDP is the bare loop."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import headway

    torch.set_num_threads(1)
    run = headway.start()
    data = [torch.randn(rows, width) for _ in range(8)]

    def net() -> nn.Module:
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(9)))

    several = torch.distributed.is_initialized()
    theirs: Any = DistributedDataParallel(net(), gradient_as_bucket_view=True) if several else net()
    their_optimizer = torch.optim.SGD(theirs.parameters(), lr=1e-4)
    ours = run.place(net())
    optimizer = torch.optim.SGD(ours.parameters(), lr=1e-4)
    feed = Batches(data)
    run.restore(model=ours, optimizer=optimizer, data=feed)
    epochs = iter(run.epochs(1))
    next(epochs)
    batches = iter(run.steps(feed))
    logged: list[float] = []

    def ddp() -> None:
        loss = theirs(data[len(logged) % 8]).mean()
        loss.backward()
        their_optimizer.step()
        their_optimizer.zero_grad()
        logged.append(loss.item())

    def own() -> None:
        loss = ours(next(batches)).mean()
        run.step(loss, optimizer)
        run.log(loss=loss)

    taken: list[list[float]] = [[], []]
    order, dice = [(0, ddp), (1, own)], random.Random(7)  # the same order on both ranks
    for round_ in range(rounds + 10):
        dice.shuffle(order)
        for number, step in order:
            if several:
                torch.distributed.barrier()
            began = time.perf_counter()
            step()
            if round_ >= 10:
                taken[number].append(time.perf_counter() - began)
    if run.main:
        for seconds_of in taken:
            print(*seconds_of)
    sys.stdout.flush()
    os._exit(0)


class Batches:
    """A feed of ready batches."""

    fingerprint = "drawn"

    def __init__(self, data: list[Any]) -> None:
        self._data = data

    def __len__(self) -> int:
        return LONGEST

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Any:
        return self._data[step % 8]


if __name__ == "__main__":
    sys.exit(main())
