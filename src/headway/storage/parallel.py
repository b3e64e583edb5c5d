"""Make the same small request for many keys in parallel: in a bucket, each is mostly latency."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")
AT_ONCE = 32
_WORTH_THREADS = 4


def for_each(request: Callable[[str], Result], keys: Sequence[str]) -> list[Result]:
    """Return the results in the order of `keys`. The first error is raised once the requests under way have ended."""
    if len(keys) < _WORTH_THREADS:
        return [request(key) for key in keys]
    with ThreadPoolExecutor(min(AT_ONCE, len(keys)), thread_name_prefix="requests") as pool:
        asked = [pool.submit(request, key) for key in keys]
        try:
            return [one.result() for one in asked]
        except BaseException:  # Ctrl-C too: cancel requests that have not started
            pool.shutdown(wait=False, cancel_futures=True)
            raise
