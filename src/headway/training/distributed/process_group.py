"""The process group: initialize and destroy it, and the collectives other than gradient sync. Main thread only."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headway.core.errors import TargetError
from headway.supervisor.rendezvous import port_in_use_error
from headway.training.distributed import grad_sync
from headway.training.distributed.grad_sync import ReducedFlags
from headway.training.rank_info import RankTopology

TIMEOUT = timedelta(minutes=5)  # by default torch waits up to 30 minutes, all billed, for a rank that died


class ProcessGroup:
    """All ranks of the run. With one rank no method communicates; `all_reduce_metrics` is for several ranks only."""

    def __init__(self, world: RankTopology, device: torch.device) -> None:
        self.world, self.device = world, device

    def init_process_group(self) -> None:
        if self.world.size == 1:
            return
        if not dist.is_initialized():
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            try:
                dist.init_process_group(backend, timeout=TIMEOUT)
            except (RuntimeError, ValueError) as error:
                if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
                    raise port_in_use_error(
                        os.environ.get("MASTER_PORT", "?"), "Address already in use", "MASTER_PORT"
                    ) from error
                raise TargetError(
                    f"rank {self.world.rank} of {self.world.size} could not join the process group: {error}",
                    fix="check the other ranks' logs: one of them did not start, or is unreachable",
                ) from error

    def destroy_process_group(self) -> None:
        if self.world.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def all_reduce_sums(self, values: Sequence[float]) -> list[float]:
        """All-reduce each value (sum) in double precision: bit-identical on every rank."""
        if self.world.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def all_reduce_metrics(self, names: float, metrics: Sequence[Any]) -> ReducedFlags:
        """Sum logged values over ranks, bit-identical to sending them with a step's gradients."""
        return grad_sync.all_reduce_metrics(self.world.rank, self.world.size, names, metrics, self.device)

    def all_reduce_tensor(self, value: Tensor) -> Tensor:
        if self.world.size == 1:
            return value
        total = value.detach().to(self.device, copy=True)
        dist.all_reduce(total)
        return total

    def broadcast(self, values: Sequence[float]) -> list[float]:
        """Return rank 0's values on every rank."""
        if self.world.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.broadcast(tensor, 0)
        return tensor.tolist()

    def broadcast_text(self, text: str) -> str:
        if self.world.size == 1:
            return text
        body = text.encode()
        size = int(self.broadcast([float(len(body))])[0])
        letters = torch.zeros(size, dtype=torch.uint8, device=self.device)
        if self.world.rank == 0:
            letters.copy_(torch.frombuffer(bytearray(body), dtype=torch.uint8))
        dist.broadcast(letters, 0)
        return bytes(letters.cpu().tolist()).decode()

    def all_gather_text(self, text: str) -> list[str]:
        """Return every rank's text, in the order of ranks."""
        if self.world.size == 1:
            return [text]
        body = text.encode()
        sizes = [0.0] * self.world.size
        sizes[self.world.rank] = float(len(body))
        sizes = self.all_reduce_sums(sizes)
        mine = torch.zeros(int(max(sizes)), dtype=torch.uint8, device=self.device)
        mine[: len(body)] = torch.frombuffer(bytearray(body), dtype=torch.uint8).to(self.device)
        found = [torch.empty_like(mine) for _ in sizes]
        dist.all_gather(found, mine)
        return [bytes(each[: int(size)].tolist()).decode() for each, size in zip(found, sizes, strict=True)]

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Broadcast rank 0's tensors to every rank, in place."""
        if self.world.size == 1:
            return
        for tensor in tensors:
            whole = tensor.detach().contiguous()
            dist.broadcast(whole, 0)
            if whole.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(whole)
