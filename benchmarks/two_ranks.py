"""What a step of two ranks costs with fixed buckets, against torch's DistributedDataParallel on the same ranks.

Both train the same model over the same gloo connections, in turn, and log the loss every step. Headway also agrees on
stopping and saving, averages the logged loss over ranks, and seeds every generator.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROUNDS, STEPS = 9, 12
SIZES = {"small (0.1 MB of gradients)": 64, "large (38 MB of gradients)": 1024}


def main() -> int:
    for name, width in SIZES.items():
        with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
            table(name, ranks(width, folder))
    return 0


def table(name: str, printed: str) -> None:
    ddp, ours = ([float(word) for word in line.split()] for line in printed.strip().splitlines())
    print(f"{name}\n\n| | ms a step | × DDP |\n| --- | ---: | ---: |")
    base = statistics.median(ddp)
    ratio = statistics.median(one / other for one, other in zip(ours, ddp, strict=True))
    print(f"| DDP | {base * 1e3:.2f} | 1.00 |\n| Headway | {statistics.median(ours) * 1e3:.2f} | {ratio:.2f} |\n")


def ranks(width: int, folder: str) -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    common |= {"GLOO_SOCKET_IFNAME": "lo", "HEADWAY_RUN_URL": f"{folder}/run"}
    common["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), common.get("PYTHONPATH", "")])
    code = f"from benchmarks.two_ranks import rank; rank({width})"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**common, "RANK": str(number), "LOCAL_RANK": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for number in range(2)
    ]
    outputs = [process.communicate(timeout=600)[0] for process in started]
    return outputs[0]


def rank(width: int) -> None:
    """Both contenders in turn, on one rank of two."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import headway

    torch.set_num_threads(1)
    run = headway.start()
    data = [torch.randn(8, width) for _ in range(STEPS)]

    def net() -> nn.Module:
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(9)))

    theirs: Any = DistributedDataParallel(net(), gradient_as_bucket_view=True)
    their_optimizer = torch.optim.SGD(theirs.parameters(), lr=1e-4)
    ours = run.place(net())
    optimizer = torch.optim.SGD(ours.parameters(), lr=1e-4)
    feed = Batches(data)
    run.restore(model=ours, optimizer=optimizer, data=feed)
    epochs = iter(run.epochs(1000))
    logged: list[float] = []

    def ddp() -> float:
        times = []
        for x in data:
            times.append(time.perf_counter())
            loss = theirs(x).mean()
            loss.backward()
            their_optimizer.step()
            their_optimizer.zero_grad()
            logged.append(loss.item())
        return (times[-1] - times[0]) / (STEPS - 1)

    def own() -> float:
        next(epochs)
        times = []
        for x in run.steps(feed):
            times.append(time.perf_counter())
            loss = ours(x).mean()
            run.step(loss, optimizer)
            run.log(loss=loss)
        return (times[-1] - times[0]) / (STEPS - 1)

    taken: list[list[float]] = [[], []]
    for round_ in range(ROUNDS + 1):
        for number, block in enumerate((ddp, own)):
            seconds = block()
            if round_:
                taken[number].append(seconds)
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
        return len(self._data)

    def batch(self, epoch: int, step: int, part: int, parts: int) -> Any:
        return self._data[step]


if __name__ == "__main__":
    sys.exit(main())
