"""The load of 1,000 nodes of 8 ranks and a billion pictures on the parts that do not train: simulated, in seconds.

The code is Headway's own; stores are in memory and count requests, connections are real ones over the loopback. A
cloud would add its latency: if a line says so, requests are counted and answered after 30 ms.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.harness import note

NODES, RANKS_A_NODE = 1_000, 8
PICTURES, ROWS_A_SHARD = 1_000_000_000, 4_096
LATENCY_S = 0.03  # of one request to an object store in the same region


def main() -> int:
    print("| part | asked of it | measured here | at this size |\n| --- | --- | ---: | --- |")
    for part in (rendezvous, manifest_of_a_checkpoint, commit, retention, shard_index, shuffling, history):
        print(f"| {part()} |", flush=True)
    return 0


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def rendezvous() -> str:
    """Every node joins node 0, proves what it knows, and is told to start."""
    from headway.supervisor.rendezvous import Connected, RendezvousServer, join

    posted: queue.Queue[Any] = queue.Queue()
    port = _free_port()
    meeting = RendezvousServer(port, b"key", NODES, posted.put)
    kept: list[Any] = []

    def come(first: int) -> None:
        for node in range(first, NODES, 16):
            if node:
                kept.append(join("127.0.0.1", port, b"key", node, {"host": f"h{node}"}))

    def all_come() -> int:
        threads = [threading.Thread(target=come, args=(first,)) for first in range(16)]
        for thread in threads:
            thread.start()
        present = 0
        while present < NODES - 1:
            present += isinstance(posted.get(timeout=120), Connected)
        for thread in threads:
            thread.join()
        return present

    seconds, present = timed(all_come)
    for connection in kept:
        connection.close()
    meeting.close()
    note("rendezvous", f"{NODES} nodes", seconds, "s")
    return f"rendezvous | {present} nodes join node 0, one TCP connection and one thread each | {seconds:.2f} s | holds"


def manifest_of_a_checkpoint() -> str:
    from headway.training.checkpoint.serialization import verify_checksum, with_checksum

    body = with_checksum(_manifest(NODES * RANKS_A_NODE))
    seconds, _ = timed(lambda: verify_checksum(body, "manifest.json"))
    size = len(body) / 1e6
    parts = f"{NODES * RANKS_A_NODE:,} parts: {size:.1f} MB"
    return f"a checkpoint's manifest | {parts} | {seconds * 1e3:.0f} ms to check | holds"


def commit() -> str:
    """One commit by rank 0 where all others have written their parts, in a store as far away as a cloud's."""
    import torch

    from headway.spec.model import Checkpoint
    from headway.training.checkpoint.index import CheckpointIndex
    from headway.training.checkpoint.writer import AsyncCheckpointWriter, CheckpointRequest, RankSlot

    ranks = NODES * RANKS_A_NODE
    store, seat = FarAway("memory://scale-commit"), RankSlot(rank=0, ranks=ranks, attempt=1)
    for rank in range(1, ranks):
        body = json.dumps({"bytes": 123_456_789, "sha256": "0" * 64}).encode()
        store.inner.write(f"checkpoints/00000001/{seat.part(rank, 0)}.json", body)
    saver = AsyncCheckpointWriter(store, seat, CheckpointIndex(store, Checkpoint()), Nobody(), environment={})
    saver.save(CheckpointRequest(step=1, epoch=0, tree={}), {"w": torch.zeros(8)}, ["w"])
    seconds, committed = timed(saver.drain)
    assert committed
    note("commit", f"{ranks:,} parts", seconds, "s")
    return (
        f"committing | {store.asked:,} requests by rank 0, each answered after {LATENCY_S * 1e3:.0f} ms, some at a time"
        f" | {seconds:.0f} s | holds: behind training's back"
    )


def retention() -> str:
    """One pass of the rule over a run with many checkpoints kept for good."""
    from headway.spec.model import Cadence, Checkpoint
    from headway.training.checkpoint.index import CheckpointEntry, CheckpointIndex

    store, ranks, keep = FarAway("memory://scale-retention"), 64, 300
    catalogue = CheckpointIndex(store, Checkpoint(every=Cadence(steps=1), keep_last=3))
    for step in range(1, keep + 1):
        for name in ("manifest.json", *(f"a0001-r{rank}.safetensors" for rank in range(ranks))):
            store.inner.write(f"checkpoints/{step:08d}/{name}", b"")
        catalogue.add_existing([CheckpointEntry(step, 0, (), None, True)])
    seconds, _ = timed(catalogue.prune)
    return (
        f"retention | the names of {keep} checkpoints' folders, however many files are in them"
        f" | {seconds * 1e3:.0f} ms, {store.asked} request | holds"
    )


class FarAway:
    """A store in memory that counts what it is asked, and answers as late as one in the same region."""

    def __init__(self, url: str) -> None:
        from headway.storage.memory import MemoryStore

        self.url, self.inner, self.asked = url, MemoryStore(url), 0
        self._counting = threading.Lock()

    def __getattr__(self, verb: str) -> Any:
        asked = getattr(self.inner, verb)

        def late(*given: Any, **options: Any) -> Any:
            self._wait()
            return asked(*given, **options)

        return late

    def folders(self, prefix: str = "") -> Iterator[str]:
        self._wait()
        yield from sorted({entry.key[len(prefix) :].partition("/")[0] for entry in self.inner.list(prefix)})

    def _wait(self) -> None:
        with self._counting:
            self.asked += 1
        time.sleep(LATENCY_S)


class Nobody:
    """Where there is no supervisor to tell."""

    def event(self, kind: str, **details: Any) -> None: ...

    def progress(self, **numbers: Any) -> None: ...


def shard_index() -> str:
    from headway.data.dataset.manifest import Column, Manifest, ShardFile

    shards = PICTURES // ROWS_A_SHARD
    files = tuple(
        ShardFile(key=f"train/{n:06d}.arrow", rows=ROWS_A_SHARD, bytes=616_562_688, sha256=f"{n:064x}")
        for n in range(shards)
    )
    column = Column(name="picture", kind="picture", encoding="jpeg")
    made = Manifest(name="x", task="classes", columns=(column,), splits={"train": files})
    text = made.to_json().encode()
    seconds, _ = timed(lambda: Manifest.from_json(text))
    note("shard index", f"{shards:,} shards", seconds, "s")
    size = f"{shards:,} shards: {len(text) / 1e6:.0f} MB"
    return f"the data set's manifest | {size} | {seconds:.1f} s to read and check | holds: once a process"


def shuffling() -> str:
    import numpy as np

    from headway.data.loading.sampler import permute

    positions = np.arange(4096, dtype=np.int64) + 123_456_789
    seconds = min(timed(lambda: permute(PICTURES, 7, 3, positions))[0] for _ in range(5))
    small = min(timed(lambda: permute(1_000, 7, 3, positions % 1000))[0] for _ in range(5))
    ratio = seconds / small
    return (
        f"shuffling | any 4,096 places of a billion, without a table | {seconds * 1e3:.1f} ms"
        f" | {ratio:.1f} × a thousand rows': holds, and takes no memory"
    )


def history() -> str:
    """A month of metrics of one run, read as `headway show` reads them."""
    from headway.rundir.layout import MAX_SEGMENT_S, RunFolder
    from headway.storage.memory import MemoryStore

    store, steps, each = MemoryStore("memory://scale-history"), 1_000_000, 25_000
    for number in range(steps // each):
        lines = (json.dumps({"step": number * each + step, "loss": 1.5}) for step in range(each))
        store.write(f"metrics/a0001-{number + 1:07d}.jsonl", ("\n".join(lines) + "\n").encode())
    seconds, found = timed(lambda: RunFolder(store).metrics())
    segments = 30 * 86_400 / MAX_SEGMENT_S
    logs = segments * NODES * RANKS_A_NODE
    return (
        f"history | {len(found):,} steps | {seconds:.1f} s to merge | {segments:,.0f} segments of metrics a month hold;"
        f" of logs {logs / 1e6:,.0f} million over all ranks: **the first to break**; `headway logs --rank` reads few"
    )


def _manifest(ranks: int) -> dict[str, Any]:
    file = {"bytes": 123_456_789, "sha256": "0" * 64}
    files = {f"a0001-r{rank}.safetensors": {**file, "name": f"a0001-r{rank}.safetensors"} for rank in range(ranks)}
    return {
        "schema": 1,
        "step": 1,
        "epoch": 0,
        "names": [],
        "score": None,
        "forever": False,
        "state": file,
        "files": files,
    }


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
