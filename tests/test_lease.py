"""Who runs a run: one conditional put decides, and a dead holder does not block it for ever."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from headway import lease, processes
from headway.errors import RunBusy, Transient
from headway.lease import Lease, LeaseLost, new_holder
from headway.storage import Store, open_store
from tests.servers.faults import FaultyStore


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "run") if request.param == "folder" else f"memory://{tmp_path.name}/run")


def foreign(store: Store, attempt: int = 4) -> str:
    """A lease held on some other host, whose process cannot be seen from here."""
    record = {
        "attempt": attempt,
        "holder": "far",
        "host": "far",
        "boot": "elsewhere",
        "pid": 1,
        "started": "1",
        "beat": 0,
    }
    return store.write(lease.KEY, json.dumps(record).encode())


def test_the_first_attempt_is_one_and_each_start_raises_it(store: Store) -> None:
    first = Lease.take(store)
    assert first.attempt == 1
    assert first.advance() == 2
    first.release()
    assert Lease.take(store).attempt == 3


def test_a_second_start_on_a_live_run_is_refused_at_once(store: Store) -> None:
    Lease.take(store)
    with pytest.raises(RunBusy, match="this run is live"):
        Lease.take(store, sleep=lambda s: pytest.fail("waited"))


def test_a_holder_seen_dead_on_this_host_is_replaced_at_once(store: Store) -> None:
    code = (
        "import sys; from headway.lease import Lease; from headway.storage import open_store;"
        "Lease.take(open_store(sys.argv[1]))"
    )
    if store.url.startswith("memory://"):
        pytest.skip("memory is not shared between processes")
    subprocess.run([sys.executable, "-c", code, store.url], check=True)
    assert Lease.take(store, sleep=lambda s: pytest.fail("waited")).attempt == 2


def test_a_holder_elsewhere_is_replaced_only_after_a_minute_of_silence_by_our_own_clock(store: Store) -> None:
    foreign(store)
    clock = count(step=7.0)
    assert Lease.take(store, clock=lambda: next(clock), sleep=lambda s: None).attempt == 5


def test_a_holder_elsewhere_that_renews_while_we_wait_is_left_alone(store: Store) -> None:
    foreign(store)
    with pytest.raises(RunBusy):
        Lease.take(store, clock=lambda: 0.0, sleep=lambda s: foreign(store) and None)


def test_one_of_many_starts_wins(store: Store) -> None:
    def start(_: int) -> int:
        try:
            return Lease.take(store, sleep=lambda s: None).attempt
        except RunBusy:
            return 0

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(start, range(8)))[-2:] == [0, 1]


def test_a_fenced_holder_learns_of_it_when_it_renews(store: Store) -> None:
    mine = Lease.take(store)
    mine.renew()
    foreign(store, attempt=2)
    with pytest.raises(LeaseLost):
        mine.renew()


def test_a_renewal_whose_answer_was_lost_is_still_ours(store: Store) -> None:
    mine = Lease.take(store)
    store.write(lease.KEY, store.read(lease.KEY))  # the version moved on, the content is ours
    mine.renew()
    mine.renew()


def test_a_start_whose_answer_was_lost_takes_what_it_has_and_does_not_meet_itself(store: Store) -> None:
    faulty, holder = FaultyStore(store, lose_answers={1}), new_holder()
    with pytest.raises(Transient):
        Lease.take(faulty, holder=holder)
    mine = Lease.take(faulty, holder=holder)
    assert mine.attempt == 1
    mine.renew()
    with pytest.raises(RunBusy):
        Lease.take(store)


def test_a_damaged_lease_is_replaced_above_every_attempt_that_left_a_trace(store: Store) -> None:
    store.write("events/a0007-0000001.jsonl", b"{}\n")
    store.write(lease.KEY, b"{half a rec")
    assert Lease.take(store).attempt == 8


def test_a_pid_used_again_by_another_process_does_not_look_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    since = processes.started(child.pid)
    assert processes.alive(child.pid, since)
    assert not processes.alive(child.pid, str(int(since) - 1))
    child.communicate()
    assert not processes.alive(child.pid, since)
