"""Under load: everybody is answered, and rightly; and memory stays where it is. HEADWAY_LOAD=1 is the long form."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.serving.inputs import Limits
from tests.serving.loading import Tally, asked_about, brightness_server, load, many_files, resident

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


CROWD, BATCH_S = 64, 0.05
QUIET_S, ATTACK_S = (10.0, 60.0) if LONG else (4.0, 14.0)


@pytest.mark.slow
def test_honest_clients_do_not_feel_the_hostile_ones() -> None:
    """Bombs, large pictures, slow headers, slow bodies, idle connections and dripping URLs, beside 64 clients."""
    many_files()
    ratios = []
    with brightness_server(queue=256, batch_s=BATCH_S) as (port, pid):
        for _ in range(3):  # other programs on these cores can disturb one of them
            with attackers(port) as start:
                quiet = _honest(port, QUIET_S)
                with most_memory(pid) as most:
                    result = start()
                    loud = _honest(port, ATTACK_S - 2)
                    hostile = result()
            print(f"quiet: {_described(quiet)}; under attack: {_described(loud)}; {most[0] / 1e6:.0f} MB\n{hostile}")
            assert quiet.wrong + loud.wrong == []
            ratios.append(loud.quantile(0.99) / quiet.quantile(0.99))
            if ratios[-1] < 2:
                break
    assert min(ratios) < 2, ratios
    assert set(hostile["seen"]["bombs"]) <= {"413", "503"}
    assert hostile["seen"]["bombs"]["413"] > 0
    assert set(hostile["seen"]["large pictures"]) <= {"200", "429", "503"}
    assert set(hostile["seen"]["dripping URLs"]) <= {"400", "503"}
    for slow in ("slow headers", "slow bodies") if LONG else ("slow headers",):
        assert hostile["seen"][slow]["closed"] > 0, slow
    limits = Limits()
    assert most[0] < 400e6 + 3 * limits.bytes_in_all + 19 * limits.pixels


def _honest(port: int, seconds: float) -> Tally:
    """64 clients, each with one request at a time, for about so many seconds."""
    count = int(seconds / (2 * BATCH_S) * CROWD)
    return asyncio.run(load(port, asked_about([number % 251 for number in range(count)]), clients=CROWD))


def _described(tally: Tally) -> str:
    return f"p50 {tally.quantile(0.5) * 1e3:.0f} ms, p99 {tally.quantile(0.99) * 1e3:.0f} ms, {tally.refused} refused"


@contextmanager
def attackers(port: int) -> Iterator[Any]:
    """A process with all hostile clients. Call what is yielded to start them, and then its result for theirs."""
    command = [sys.executable, "-m", "tests.serving.attacks", str(port), str(ATTACK_S)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def start() -> Any:
        stdin.write("go\n")
        stdin.flush()
        return lambda: json.loads(stdout.readline())

    try:
        assert stdout.readline() == "ready\n"
        yield start
    finally:
        process.kill()
        process.communicate()


@contextmanager
def most_memory(pid: int) -> Iterator[list[int]]:
    """The most memory that a server and its decoders have held, looked at ten times a second."""
    most, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            children = Path(f"/proc/{pid}/task/{pid}/children").parent.parent.glob("*/children")
            held = 0
            for each in {pid, *(int(child) for file in children for child in file.read_text().split())}:
                try:
                    held += resident(each)
                except (OSError, AssertionError):  # it has just ended
                    pass
            most[0] = max(most[0], held)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()
