"""Run tasks in parallel: in this process, on a local Dask cluster, or on an existing one.

A task maps an order (a JSON string) to a receipt (a JSON string). Only a few are in flight at a time, so memory does
not grow with their number. Receipts are yielded as they complete, in any order.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from headway.core.errors import BadInput, HeadwayError

Task = Callable[[str], str]

CONNECT_S = 20.0  # timeout for connecting to a scheduler


class ClusterLost(HeadwayError):
    """The Dask scheduler or its workers disappeared. Finished shards are kept, so starting again resumes."""


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(task: Task, inputs: Iterable[str], *, workers: int, dask: str | None, scratch: Path) -> Iterator[str]:
    """Yield the receipt of every order. One worker runs in this process; `dask` is the address of a scheduler."""
    if dask is None and workers <= 1:
        yield from map(task, inputs)
        return
    with _client(workers, dask, scratch) as client:
        yield from _run_on(client, task, inputs, dask or "the local cluster")


def _run_on(client: Any, task: Task, inputs: Iterable[str], where: str) -> Iterator[str]:
    remaining = iter(inputs)
    in_flight = 2 * max(1, len(client.nthreads())) + 2
    pending = _distributed().as_completed(_submit(client, task, islice(remaining, in_flight)), loop=client.loop)
    for future in pending:
        yield _result(future, where)
        for started in _submit(client, task, islice(remaining, 1)):
            pending.add(started)


def _submit(client: Any, task: Task, inputs: Iterable[str]) -> list[Any]:
    # pure=False: otherwise Dask hashes each order to look up a cached result.
    return [client.submit(task, order, pure=False, retries=2) for order in inputs]


def _result(future: Any, where: str) -> str:
    if future.status in ("cancelled", "lost"):
        raise _cluster_gone(where, "the scheduler shut down")
    try:
        return str(future.result())
    except _distributed().KilledWorker as error:
        raise _cluster_gone(where, f"its workers died repeatedly: {error}") from None
    except (OSError, TimeoutError) as error:
        raise _cluster_gone(where, f"the connection broke: {error}") from None


def _cluster_gone(where: str, why: str) -> ClusterLost:
    return ClusterLost(
        f"{where}: {why}",
        fix="start it again: finished shards are kept. If workers run out of memory, use fewer of them",
    )


@contextmanager
def _client(workers: int, dask: str | None, scratch: Path) -> Iterator[Any]:
    distributed = _distributed()  # import before touching dask.config: the import loads its defaults there
    import dask as dask_library

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # its errors reach us as exceptions
    settings = {"distributed.comm.timeouts.connect": f"{CONNECT_S}s", "distributed.worker.use-file-locking": False}
    with dask_library.config.set(settings):
        if dask is not None:
            with _connect(dask) as client:
                yield client
            return
        with (
            _local_cluster(distributed, workers, scratch) as cluster,
            distributed.Client(cluster, set_as_default=False) as client,
        ):
            yield client


def _local_cluster(distributed: Any, workers: int, scratch: Path) -> Any:
    try:
        return distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
            memory_limit=0,  # a chunk's memory is bounded; a worker restarted for using too much would only loop
            local_directory=str(scratch),
            silence_logs=logging.CRITICAL,
        )
    except RuntimeError as error:
        raise ClusterLost(
            f"the workers did not start: {error}",
            fix="in a script, call prepare() below `if __name__ == '__main__':`; or use workers=1",
        ) from error


@contextmanager
def _connect(address: str) -> Iterator[Any]:
    try:
        client = _distributed().Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise BadInput(
            f"no Dask scheduler responds at {address}: {' '.join(str(error).split())[:200]}",
            fix="check the address (tcp://host:8786, or tls:// with Dask's TLS settings), or leave out --dask",
        ) from None
    with client:
        if not client.nthreads():
            raise BadInput(f"the Dask scheduler at {address} has no workers", fix=f"dask worker {address}")
        yield client


def _distributed() -> Any:
    """Import `distributed` (untyped and slow to import) only when a cluster is needed."""
    return import_module("distributed")
