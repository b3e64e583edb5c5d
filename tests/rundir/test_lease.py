"""Who runs a run: one conditional put decides, and a dead holder does not block it for ever."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from headway.core import platform
from headway.core.errors import RunBusy, Transient
from headway.rundir import lease
from headway.rundir.layout import RunFolder
from headway.rundir.lease import Lease, LeaseLost, new_holder
from headway.storage import Store, open_store
from tests.servers.faults import FaultyStore


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "run") if request.param == "folder" else f"memory://{tmp_path.name}/run")


def foreign(store: Store, attempt: int = 4, beat: int = 0, **more: object) -> str:
    """A lease held on some other host, whose process cannot be seen from here, as an earlier Headway wrote it."""
    record = {
        "attempt": attempt,
        "holder": "far",
        "host": "far",
        "boot": "elsewhere",
        "pid": 1,
        "started": "1",
        "beat": beat,
        **more,
    }
    return store.write(lease.KEY, json.dumps(record).encode())


def total(store: Store) -> float:
    record, _ = lease.read(store)
    return lease.seconds_spent(RunFolder(store).events(), record)


def taken_when_stale(store: Store) -> Lease:
    clock = count(step=30.0)
    return Lease.acquire(store, clock=lambda: next(clock), sleep=lambda s: None)


def test_the_first_attempt_is_one_and_each_start_raises_it(store: Store) -> None:
    first = Lease.acquire(store)
    assert first.attempt == 1
    assert first.advance() == 2
    first.release()
    assert Lease.acquire(store).attempt == 3


def test_a_second_start_on_a_live_run_is_refused_at_once(store: Store) -> None:
    Lease.acquire(store)
    with pytest.raises(RunBusy, match="this run is already running"):
        Lease.acquire(store, sleep=lambda s: pytest.fail("waited"))


def test_a_holder_seen_dead_on_this_host_is_replaced_at_once(store: Store) -> None:
    code = (
        "import sys; from headway.rundir.lease import Lease; from headway.storage import open_store;"
        "Lease.acquire(open_store(sys.argv[1]))"
    )
    if store.url.startswith("memory://"):
        pytest.skip("memory is not shared between processes")
    subprocess.run([sys.executable, "-c", code, store.url], check=True)
    assert Lease.acquire(store, sleep=lambda s: pytest.fail("waited")).attempt == 2


@pytest.mark.parametrize("label", ["HEADWAY_RUN_URL", "HEADWAY_CLIENT_URL"])
def test_a_live_holder_that_runs_another_folder_does_not_hold_this_one(tmp_path: Path, label: str) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    env = {**os.environ, label: str(original)}
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, str(original)], env=env, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        shutil.copytree(original, copy)
        with pytest.raises(RunBusy):
            Lease.acquire(open_store(str(original)))
        assert Lease.acquire(open_store(str(copy)), sleep=lambda s: pytest.fail("waited")).attempt == 2
    finally:
        holder.kill()
        holder.communicate()


HOLDS = """
import sys, time
from headway.rundir.lease import Lease
from headway.storage import open_store
Lease.acquire(open_store(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_holder_elsewhere_is_replaced_only_after_a_minute_of_silence_by_our_own_clock(store: Store) -> None:
    foreign(store)
    clock = count(step=7.0)
    assert Lease.acquire(store, clock=lambda: next(clock), sleep=lambda s: None).attempt == 5


def test_a_holder_elsewhere_that_renews_while_we_wait_is_left_alone(store: Store) -> None:
    foreign(store)
    with pytest.raises(RunBusy):
        Lease.acquire(store, clock=lambda: 0.0, sleep=lambda s: foreign(store) and None)


def test_one_of_many_starts_wins(store: Store) -> None:
    def start(_: int) -> int:
        try:
            return Lease.acquire(store, sleep=lambda s: None).attempt
        except RunBusy:
            return 0

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(start, range(8)))[-2:] == [0, 1]


def test_a_fenced_holder_learns_of_it_when_it_renews(store: Store) -> None:
    mine = Lease.acquire(store)
    mine.renew()
    foreign(store, attempt=2)
    with pytest.raises(LeaseLost):
        mine.renew()


def test_a_renewal_whose_answer_was_lost_is_still_ours(store: Store) -> None:
    mine = Lease.acquire(store)
    store.write(lease.KEY, store.read(lease.KEY))  # the version moved on, the content is ours
    mine.renew()
    mine.renew()


def test_a_start_whose_answer_was_lost_takes_what_it_has_and_does_not_meet_itself(store: Store) -> None:
    faulty, holder = FaultyStore(store, lose_answers={1}), new_holder()
    with pytest.raises(Transient):
        Lease.acquire(faulty, holder=holder)
    mine = Lease.acquire(faulty, holder=holder)
    assert mine.attempt == 1
    mine.renew()
    with pytest.raises(RunBusy):
        Lease.acquire(store)


def test_a_damaged_lease_is_replaced_above_every_attempt_that_left_a_trace(store: Store) -> None:
    store.write("events/a0007-0000001.jsonl", b"{}\n")
    store.write(lease.KEY, b"{half a rec")
    assert Lease.acquire(store).attempt == 8


def test_a_pid_used_again_by_another_process_does_not_look_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    since = platform.process_start_time(child.pid)
    assert platform.is_alive(child.pid, since)
    assert not platform.is_alive(child.pid, str(int(since) - 1))
    child.communicate()
    assert not platform.is_alive(child.pid, since)


# What a holder had spent is never lost and never counted twice.


def test_a_holder_that_takes_over_carries_what_the_dead_one_had_spent(store: Store) -> None:
    for lost in range(1, 4):
        foreign(store, attempt=lost, beat=30, spent_s=300.0 * (lost - 1))
        mine = taken_when_stale(store)
        assert mine.record.spent_s == total(store) == 300.0 * lost
    mine.renew()
    assert total(store) == 910.0
    mine.release()
    assert total(store) == 900.0, "a supervisor's events say what it has spent itself"


def test_a_freed_lease_carries_what_its_holder_had_spent(store: Store) -> None:
    foreign(store, beat=30)
    before = total(store)
    assert lease.release_dead_holder(store, lambda record: True)
    assert total(store) == before == 300.0
    assert not lease.release_dead_holder(store, lambda record: True)
    assert total(store) == 300.0
    assert Lease.acquire(store).record.spent_s == total(store) == 300.0


def test_beats_are_as_long_as_their_holder_says(store: Store) -> None:
    mine = Lease.acquire(store, renew_s=0.5)
    for _ in range(4):
        mine.renew()
    assert total(store) == 2.0
    assert mine.advance() == 2
    assert total(store) == 2.0
    assert lease.release_dead_holder(store, lambda record: True)
    assert total(store) == 2.0
    with pytest.raises(LeaseLost):
        mine.renew()


def test_of_an_older_lease_the_newest_attempt_says_from_where_it_counts(store: Store) -> None:
    started = {"kind": "attempt", "number": 4, "spent_s": 1000.1, "held_from_s": 1000.0}
    store.write("events/a0004-0000001.jsonl", json.dumps(started).encode() + b"\n")
    foreign(store, beat=30)
    assert total(store) == 1300.0
    assert taken_when_stale(store).record.spent_s == 1300.0
    foreign(store, beat=30, holder=None)
    assert total(store) == 1000.1, "given up with a last word, as it was read before"


def test_a_lease_is_freed_only_if_its_holder_is_gone_and_silent(store: Store) -> None:
    seen = foreign(store, beat=1)
    assert not lease.release_dead_holder(store, lambda record: False)
    foreign(store, beat=2)
    assert not lease.release_dead_holder(store, lambda record: True, version=seen), "it has been renewed since"

    def renews(record: lease.LeaseRecord) -> bool:
        foreign(store, beat=3)
        return True

    assert not lease.release_dead_holder(store, renews)
    record, _ = lease.read(store)
    assert record is not None
    assert (record.holder, record.beat) == ("far", 3)


@pytest.mark.parametrize("free_first", [True, False])
def test_a_freed_lease_whose_answer_was_lost_is_credited_once(store: Store, free_first: bool) -> None:
    foreign(store, beat=30)
    faulty = FaultyStore(store, lose_answers={1})
    with pytest.raises(Transient):
        lease.release_dead_holder(faulty, lambda record: True) if free_first else Lease.acquire(
            faulty, stale_s=0.0, sleep=lambda s: None
        )
    lease.release_dead_holder(store, lambda record: True)
    assert total(store) == 300.0


def test_damaged_events_do_not_keep_a_lease_from_being_freed_with_its_credit(store: Store) -> None:
    store.write("events/a0004-0000001.jsonl", b"{half a rec\n")
    foreign(store, beat=30, spent_s=100.0)
    assert lease.release_dead_holder(store, lambda record: True)
    record, _ = lease.read(store)
    assert record is not None
    assert (record.holder, record.spent_s) == (None, 400.0)


@pytest.mark.parametrize("value", [-1.0, "5", None, True, 1e300])
def test_a_lease_with_no_sensible_count_is_damaged(store: Store, value: object) -> None:
    foreign(store, spent_s=value)
    assert lease.read(store)[0] is None


def test_a_field_of_a_later_headway_does_not_make_a_lease_unreadable(store: Store) -> None:
    foreign(store, beat=30, colour="blue")
    assert total(store) == 300.0
