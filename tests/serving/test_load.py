"""Under load: everybody is answered, and rightly; and memory stays where it is. HEADWAY_LOAD=1 is the long form."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.serving.loading import asked_about, brightness_server, load, many_files, resident

LONG = bool(os.environ.get("HEADWAY_LOAD"))
CLIENTS, EACH = (1000, 5) if LONG else (150, 2)
REQUESTS = 50_000 if LONG else 2_000


@pytest.mark.slow
def test_every_client_of_a_crowd_gets_its_own_answer() -> None:
    """A short queue, so that most are refused at first; whoever is, comes again when told to."""
    many_files()
    with brightness_server(queue=64) as (port, _):
        values = [number % 251 for number in range(CLIENTS * EACH)]
        tally = asyncio.run(load(port, asked_about(values), clients=CLIENTS))
    print(
        f"{CLIENTS} clients, {len(values)} requests: {len(values) / tally.took:.0f} a second, {tally.refused} refused, "
        f"p50 {tally.quantile(0.5):.2f} s, p99 {tally.quantile(0.99):.2f} s"
    )
    assert tally.wrong == []
    assert tally.right == len(values)
    assert tally.refused > 0, "the crowd was larger than the queue"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_memory_stays_flat() -> None:
    """After a fifth of the requests everything that is kept is there: the rest may add next to nothing."""
    asked = asked_about([number % 251 for number in range(REQUESTS)])
    with brightness_server(queue=256) as (port, pid):
        first = asyncio.run(load(port, asked[: REQUESTS // 5], clients=16))
        before = resident(pid)
        rest = asyncio.run(load(port, asked[REQUESTS // 5 :], clients=16))
        after = resident(pid)
    rate = REQUESTS * 4 / 5 / rest.took
    print(f"{REQUESTS} requests, {rate:.0f} a second: {before / 1e6:.1f} MB, then {after / 1e6:.1f} MB")
    assert first.wrong + rest.wrong == []
    assert after - before < 8e6
