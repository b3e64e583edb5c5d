"""The process group: initialize and destroy it, and the collectives other than gradient sync. Main thread only."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from headway.core.errors import BadInput, HeadwayError, TargetError
from headway.supervisor.rendezvous import port_in_use_error
from headway.training import devices
from headway.training.distributed import grad_sync
from headway.training.distributed.grad_sync import ReducedFlags
from headway.training.rank_info import RankTopology

_MESSAGE_S = 5.0  # between two messages of ranks that wait for each other
_PIECE_BYTES = 64 << 20
TIMEOUT = timedelta(minutes=5)  # by default torch waits up to 30 minutes, all billed, for a rank that died


class ProcessGroup:
    """All ranks of the run. With one rank no method communicates; `all_reduce_metrics` is for several ranks only.

    Numbers and texts are exchanged in host memory, by gloo: that neither waits for the device nor needs it.
    """

    def __init__(self, world: RankTopology, device: torch.device) -> None:
        self.world, self.device = world, device

    def init_process_group(self) -> None:
        if self.world.size == 1:
            return
        if not dist.is_initialized():
            try:
                self._join()
            except (RuntimeError, ValueError) as error:
                if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
                    raise port_in_use_error(
                        os.environ.get("MASTER_PORT", "?"), "Address already in use", "MASTER_PORT"
                    ) from error
                raise TargetError(
                    f"rank {self.world.rank} of {self.world.size} could not join the process group: {error}",
                    fix="check the other ranks' logs: one of them did not start, or is unreachable",
                ) from error

    def _join(self) -> None:
        """Initialize the process group, after a check that every rank has a device of its own."""
        backend = devices.collective_backend(self.device)
        store, rank, size = next(iter(rendezvous("env://", timeout=TIMEOUT)))
        store.set_timeout(TIMEOUT)
        self._check_devices(PrefixStore("headway", store))
        bound = None if self.device.type == "cpu" else self.device  # nccl then connects at once
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT, device_id=bound)

    def _check_devices(self, store: Store) -> None:
        """Let rank 0 compare the ranks' devices, through the rendezvous store: collectives would hang on one twice."""
        if self.device.type == "cpu":
            return
        rank, size = self.world.rank, self.world.size
        store.set(f"device/{rank}", devices.device_identity(self.device))
        if rank == 0:
            try:
                devices.require_own_device([store.get(f"device/{each}").decode() for each in range(size)])
                store.set("devices", "")
            except BadInput as problem:
                store.set("devices", "shared")
                raise problem
        elif store.get("devices"):
            raise BadInput("two ranks share one device: see the log of rank 0")

    def destroy_process_group(self) -> None:
        if self.world.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def all_reduce_sums(self, values: Sequence[float]) -> list[float]:
        """All-reduce each value (sum) in double precision: bit-identical on every rank."""
        if self.world.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
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
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.broadcast(tensor, 0)
        return tensor.tolist()

    def run_together(self, work: Callable[[], object]) -> HeadwayError | None:
        """Run `work` on every rank until all are done, however long; return an error that stops all of them.

        The ranks exchange a short message every few seconds, so that none waits longer in a collective, and a rank that
        died is noticed. An error of this rank is raised here once all are done.
        """
        if self.world.size == 1:
            work()
            return None
        errors: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised below, on the main thread
                errors.append(error)

        thread = threading.Thread(target=run, name="headway-together", daemon=True)
        thread.start()
        pause_s, done, failed = 0.01, 0.0, 0.0
        while done < self.world.size:
            thread.join(pause_s)
            ended = not thread.is_alive()
            done, failed = self.all_reduce_sums([float(ended), float(ended and bool(errors))])
            pause_s = min(2 * pause_s, _MESSAGE_S)
        if errors:
            raise errors[0]
        return HeadwayError("another rank failed: see its log") if failed else None

    def broadcast_bytes(self, body: bytearray | None, size: int, owner: int) -> bytearray:
        """Return the owner's bytes on every rank, without copying those of the owner."""
        held = bytearray(size) if body is None else body
        if size:
            whole = torch.frombuffer(held, dtype=torch.uint8)
            for start in range(0, size, _PIECE_BYTES):
                dist.broadcast(whole[start : start + _PIECE_BYTES], owner)
        return held

    def broadcast_text(self, text: str) -> str:
        if self.world.size == 1:
            return text
        body = text.encode()
        size = int(self.broadcast([float(len(body))])[0])
        letters = torch.zeros(size, dtype=torch.uint8)
        if self.world.rank == 0:
            letters.copy_(torch.frombuffer(bytearray(body), dtype=torch.uint8))
        dist.broadcast(letters, 0)
        return bytes(letters.numpy()).decode()

    def all_gather_text(self, text: str) -> list[str]:
        """Return every rank's text, in the order of ranks."""
        if self.world.size == 1:
            return [text]
        body = text.encode()
        sizes = [0.0] * self.world.size
        sizes[self.world.rank] = float(len(body))
        sizes = self.all_reduce_sums(sizes)
        if not any(sizes):
            return [""] * len(sizes)
        mine = torch.zeros(int(max(sizes)), dtype=torch.uint8)
        if body:
            mine[: len(body)] = torch.frombuffer(bytearray(body), dtype=torch.uint8)
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
