"""How many threads torch answers with: as many as were fastest at this very start.

A small model's threads wait for each other longer than they work, and a neighbour on one of the cores makes that many
times worse. What is faster depends on the model and the machine, so that it is tried.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Final

from headway.serve.service import Field, Instance, Service

_TOGETHER: Final = 8  # in a batch, besides one alone
_ROUNDS: Final = 3
_LONG_S: Final = 2.0  # after this no further round is begun


def wait_briefly() -> None:
    """Before torch is loaded: its threads spin only for a moment when they wait for each other (see the supervisor)."""
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def choose(service: Service) -> str:
    """Try each number of threads on made-up inputs, keep the fastest, and say so. OMP_NUM_THREADS is obeyed."""
    import torch

    most = torch.get_num_threads()
    if os.environ.get("OMP_NUM_THREADS"):
        return f"{most}, by OMP_NUM_THREADS"
    if most == 1:
        return "1"
    prepared = [service.prepare(made_up(service.fields)) for _ in range(_TOGETHER)]
    taken = {count: float("inf") for count in _counts(most)}
    began = time.monotonic()
    for _ in range(_ROUNDS):
        for count in taken:  # in turn: what disturbs hits all alike
            torch.set_num_threads(count)
            taken[count] = min(taken[count], _seconds(service, prepared))
        if time.monotonic() - began > _LONG_S:
            break
    best = min(taken, key=lambda count: taken[count])
    torch.set_num_threads(best)
    return f"{best} of {most}: " + ", ".join(f"{1e3 * taken[count]:.0f} ms with {count}" for count in taken)


def made_up(fields: Sequence[Field]) -> Instance:
    import numpy as np

    grey = np.linspace(0, 255, 224, dtype=np.uint8)[:, None, None].repeat(224, axis=1).repeat(3, axis=2)
    return {field.name: grey if field.kind == "picture" else "a man in a blue shirt" for field in fields}


def _counts(most: int) -> list[int]:
    """1, 2, 4, … and all of them."""
    return sorted({*(1 << power for power in range(most.bit_length()) if 1 << power <= most), most})


def _seconds(service: Service, prepared: Sequence[Any]) -> float:
    began = time.perf_counter()
    service.answer(prepared[:1], explain=False)
    service.answer(prepared, explain=False)
    return time.perf_counter() - began
