"""`gc`: what carries our label and belongs to no live run is found without local state, and removed."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headway import launcher
from headway.errors import TargetError
from headway.ledger import Ledger
from headway.orphans import LIVE, ORPHAN, UNKNOWN, Place, look, places, remove
from headway.planning import Plan
from headway.spec import Job
from headway.spec.model import TargetEntry
from headway.targets.base import Handle, State
from headway.targets.fake import FakeTarget, Options, Play
from headway.targets.registry import TARGETS, Entry
from tests.cli.conftest import Headway
from tests.contract.plays import FAKE, plan_play, play_of, write_project

WAITS = Play(lines=("waits",), until_stopped=True)
SHARED = FakeTarget(plays=play_of)


class Same(FakeTarget):
    """However often it is built, the same workers: as a real place is the same from every machine."""

    def __new__(cls, options: Options | None = None) -> Same:
        return SHARED  # type: ignore[return-value]

    def __init__(self, options: Options | None = None) -> None:
        pass


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    SHARED.workers.clear()
    entry = Entry(f"{__name__}:Same", options=FAKE.options, extra=None, summary="in memory")
    monkeypatch.setattr(Entry, "load_target", lambda self: Same if self is entry else _loaded(self))
    monkeypatch.setitem(TARGETS, "fake", entry)


_loaded = Entry.load_target
HERE = Place(name="fake", kind="fake", options={})


@pytest.fixture
def plan_of(tmp_path: Path) -> Callable[..., Plan]:
    project = write_project(tmp_path / "project")
    outputs = str(tmp_path / "runs")
    return lambda play=WAITS, **more: plan_play(project, play, **{"on": "fake", "outputs": outputs, **more})


def start(plan: Plan) -> launcher.Launched:
    return launcher.launch(plan, detach=True, target=SHARED)


def verdicts() -> dict[str, str]:
    return {found.handle.run: found.verdict for found in look(HERE)}


def test_a_live_run_is_left_alone(plan_of: Callable[..., Plan]) -> None:
    hold = start(plan_of())
    assert verdicts() == {hold.run: LIVE}


def test_an_ended_run_that_nobody_took_down_is_an_orphan_and_gets_its_receipt(plan_of: Callable[..., Plan]) -> None:
    hold = start(plan_of())
    SHARED.end(hold.url, State.FINISHED)
    (found,) = look(HERE)
    assert found.verdict == ORPHAN
    assert remove(found, say=print).left == ()
    assert look(HERE) == []
    assert hold.folder.read_json("teardown.json")


def test_workers_without_a_folder_are_removed_too(plan_of: Callable[..., Plan]) -> None:
    hold = start(plan_of())
    SHARED._attempts.clear()
    shutil.rmtree(hold.url)
    (found,) = look(HERE)
    assert (found.verdict, found.why) == (ORPHAN, "its run folder is gone")
    remove(found, say=print)
    assert look(HERE) == []


def test_a_folder_out_of_reach_condemns_nobody(plan_of: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.errors import Transient

    hold = start(plan_of())

    def refuse(handle: Handle) -> None:
        raise Transient("the bucket is out of reach")

    monkeypatch.setattr(SHARED, "status", refuse, raising=False)
    assert verdicts() == {hold.run: UNKNOWN}


def test_what_is_past_its_latest_end_is_an_orphan_though_it_runs(
    plan_of: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = start(plan_of())
    old = Handle(target="fake", run=hold.run, url=hold.url, details={"expires": time.time() - 5})
    monkeypatch.setattr(SHARED, "found", lambda: [old], raising=False)
    assert verdicts() == {hold.run: ORPHAN}


def test_a_failed_run_that_is_kept_is_no_orphan_until_its_time_is_over(plan_of: Callable[..., Plan]) -> None:
    kept = launcher.launch(plan_of(), env={"HEADWAY_KEEP_ON_FAILURE_S": "3600"}, detach=True, target=SHARED)
    SHARED.end(kept.url, State.FAILED, reason="x", exit_code=1)
    assert verdicts() == {kept.run: LIVE}
    assert kept.outcome().receipt is None  # whoever looks leaves it alone
    assert look(HERE)
    over = launcher.launch(plan_of(), env={"HEADWAY_KEEP_ON_FAILURE_S": "0.000001"}, detach=True, target=SHARED)
    SHARED.end(over.url, State.FAILED, reason="x", exit_code=1)
    assert verdicts()[over.run] == ORPHAN


def test_places_are_those_of_the_job_file_and_of_runs_not_seen_to_their_end(plan_of: Callable[..., Plan]) -> None:
    job = Job(name="j", script="t.py", targets={"mine": TargetEntry(kind="slurm", options={"partition": "p"})})
    assert [place.name for place in places(job)] == ["local", "mine"]
    start(plan_of())
    assert [place.name for place in places(None)] == ["local", "fake"]
    assert [place.kind for place in places(job, on="mine")] == ["slurm"]
    assert [place.kind for place in places(None, on="docker")] == ["docker"]


def test_without_any_index_the_job_file_is_enough(plan_of: Callable[..., Plan]) -> None:
    start(plan_of())
    Ledger().path.unlink()
    job = Job(name="j", script="t.py", targets={"there": TargetEntry(kind="fake")})
    assert [place.kind for place in places(job)] == ["local", "fake"]


# The verb.


def test_gc_lists_asks_removes_and_looks_again(headway: Headway, plan_of: Callable[..., Plan]) -> None:
    live, dead = start(plan_of()), start(plan_of())
    SHARED.end(dead.url, State.STOPPED)
    listed = headway("gc", "--dry-run", "--on", "fake")
    assert listed.code == 5
    assert dead.run in listed.out
    said = headway("gc", "-y", "--on", "fake")
    assert said.code == 0
    assert "nothing is left behind" in said.out
    assert set(SHARED.workers) == {live.url}


def test_gc_without_a_person_or_yes_removes_nothing_and_says_so(
    headway: Headway, plan_of: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    dead = start(plan_of())
    SHARED.end(dead.url, State.STOPPED)
    said = headway("gc", "--on", "fake", "--json")
    assert said.code == 5
    assert json.loads(said.out)["left"] == [dead.run]
    assert dead.url in SHARED.workers


def test_gc_goes_on_where_one_place_cannot_be_asked(
    headway: Headway, plan_of: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> list[Handle]:
        raise TargetError("the cluster is out of reach")

    start(plan_of())
    monkeypatch.setattr(SHARED, "found", refuse, raising=False)
    said = headway("gc")
    assert said.code == 0
    assert "fake was not asked: the cluster is out of reach" in said.out
    assert headway("gc", "--on", "fake").code == 1


def test_gc_of_an_empty_place_is_quickly_done(headway: Headway) -> None:
    assert headway("gc", "--on", "fake").code == 0


def test_down_names_what_goes_on_costing(
    headway: Headway, plan_of: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = start(plan_of())
    monkeypatch.setattr(SHARED, "still_billed", lambda: ["2 nodes in pool gpu, $1.46/h"], raising=False)
    assert "still billed: 2 nodes in pool gpu, $1.46/h" in headway("down", hold.run).out

    def refuse() -> list[str]:
        raise TargetError("the cluster is out of reach")

    monkeypatch.setattr(SHARED, "still_billed", refuse, raising=False)
    said = headway("down", hold.run)
    assert said.code == 0
    assert "could not be looked up: the cluster is out of reach" in said.out
