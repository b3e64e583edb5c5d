"""The index of runs is quick, shared, and never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.rundir.index import RunIndex, RunRow


def row(
    name: str, created: float = 1.0, *, target: str = "local", outputs: str = "/runs", state: str = "running"
) -> RunRow:
    return RunRow(name=name, url=f"{outputs}/{name}", target=target, job="job", created=created, state=state)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def run_index(tmp_path: Path, said: list[str]) -> RunIndex:
    return RunIndex(tmp_path / "ledger.sqlite", log=said.append)


def test_runs_are_listed_newest_first_and_the_later_of_two_at_once_comes_first(run_index: RunIndex) -> None:
    run_index.record(row("old", 1), row("new", 3), row("middle", 2), row("twin", 3))
    assert [found.name for found in run_index.rows()] == ["twin", "new", "middle", "old"]


def test_a_listing_is_narrowed_by_pattern_target_and_limit(run_index: RunIndex) -> None:
    run_index.record(row("cap-1", 1), row("cap-2", 2, target="gke"), row("other", 3))
    assert [found.name for found in run_index.rows(glob="cap-*")] == ["cap-2", "cap-1"]
    assert [found.name for found in run_index.rows(target="gke")] == ["cap-2"]
    assert [found.name for found in run_index.rows(limit=1)] == ["other"]


def test_a_run_recorded_twice_is_one_row_brought_up_to_date(run_index: RunIndex) -> None:
    run_index.record(row("r", 1, state="pending"))
    run_index.record(row("r", 1, state="running"))
    run_index.update_state("/runs/r", "finished")
    (found,) = run_index.rows()
    assert (found.state, found.created) == ("finished", 1)
    assert found.seen <= time.time()


def test_prefixes_are_taken_literally(run_index: RunIndex) -> None:
    run_index.record(row("abc", 1), row("abd", 2), row("a-star", 3), row("b", 4))
    assert [found.name for found in run_index.with_prefix("ab")] == ["abd", "abc"]
    assert run_index.with_prefix("a*") == []


def test_a_forgotten_run_is_not_listed(run_index: RunIndex) -> None:
    run_index.record(row("r"))
    run_index.remove("/runs/r")
    assert run_index.rows() == []


def test_reading_creates_nothing(run_index: RunIndex) -> None:
    assert run_index.rows() == []
    assert not run_index.path.exists()


@pytest.mark.parametrize("damage", ["garbage", "truncated", "zeroed"])
def test_a_damaged_index_is_set_aside_said_and_started_anew(run_index: RunIndex, said: list[str], damage: str) -> None:
    run_index.record(*(row(f"r{i}", i) for i in range(300)))
    whole = run_index.path.read_bytes()
    middle = len(whole) // 2
    broken = {
        "garbage": b"not a database at all" * 100,
        "truncated": whole[:middle],
        "zeroed": whole[:4096] + bytes(len(whole) - 4096),
    }
    run_index.path.write_bytes(broken[damage])
    run_index.record(row("after", 999))
    assert [found.name for found in run_index.rows()] == ["after"]
    assert "headway ps --rebuild" in said[0]
    (aside,) = run_index.path.parent.glob("*.damaged-*")
    assert aside.read_bytes() == broken[damage]


def test_a_journal_of_the_damaged_index_is_not_played_into_the_new_one(run_index: RunIndex) -> None:
    run_index.record(row("r"))
    run_index.path.write_bytes(b"damaged beyond recognition" * 100)
    journal = run_index.path.with_name(run_index.path.name + "-journal")
    journal.write_bytes(b"stale")
    run_index.record(row("after"))
    assert [found.name for found in run_index.rows()] == ["after"]
    assert not journal.exists()


def test_an_index_that_cannot_be_written_is_said_and_does_not_stop_anything(tmp_path: Path, said: list[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    run_index = RunIndex(tmp_path / "file" / "ledger.sqlite", log=said.append)
    run_index.record(row("r"))
    assert run_index.rows() == []
    assert "the run is not affected" in said[0]


def test_a_full_disk_is_said_and_does_not_stop_anything(said: list[str]) -> None:
    run_index = RunIndex(Path("/dev/full"), log=said.append)
    run_index.record(row("r"))
    assert "the run is not affected" in said[0]


def test_an_index_of_a_newer_headway_is_left_alone(run_index: RunIndex, said: list[str]) -> None:
    import sqlite3
    from contextlib import closing

    run_index.record(row("r"))
    with closing(sqlite3.connect(run_index.path)) as db:
        db.execute("PRAGMA user_version = 99")
    before = run_index.path.read_bytes()
    run_index.record(row("s"))
    assert run_index.path.read_bytes() == before
    assert "newer Headway" in said[0]


WRITER = """
import sys
from pathlib import Path
from headway.rundir.index import RunIndex, RunRow
run_index = RunIndex(Path(sys.argv[1]), log=lambda text: sys.exit(text))
for i in range(25):
    name = f"w{sys.argv[2]}-{i}"
    run_index.record(RunRow(name=name, url=f"/runs/{name}", target="local", job="j", created=float(i)))
    run_index.update_state(f"/runs/{name}", "finished")
"""


def test_several_processes_write_at_once_and_no_row_is_lost(run_index: RunIndex) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(run_index.path), str(i)]) for i in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    rows = run_index.rows()
    assert len(rows) == 100
    assert {found.state for found in rows} == {"finished"}


def test_ten_thousand_runs_are_listed_without_reading_them_all(run_index: RunIndex) -> None:
    run_index.record(*(row(f"run-{i:05d}", i) for i in range(10_000)))

    def work(limit: int) -> float:
        start = time.process_time()
        for _ in range(20):
            assert len(run_index.rows(limit=limit)) == limit
        return time.process_time() - start

    assert work(20) < work(5_000) / 3
    assert run_index.with_prefix("run-09999")[0].name == "run-09999"


def test_the_index_lives_in_headways_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "elsewhere"))
    RunIndex().record(row("r"))
    assert os.listdir(tmp_path / "elsewhere") == ["ledger.sqlite"]
