"""`gc`: what carries our label and belongs to no live run is found without local state, and removed."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headway.cli.inspect import refreshed
from headway.core.errors import TargetError, UnknownRun
from headway.core.types import Handle, State, Status
from headway.launcher import lifecycle
from headway.launcher.gc import (
    LIVE,
    ORPHAN,
    OTHER_OWNER,
    UNKNOWN,
    TargetRef,
    deduplicate,
    find_resources,
    remove,
    target_refs,
)
from headway.planning import Plan
from headway.plugins import TARGETS, TargetPlugin
from headway.rundir import lease
from headway.rundir.index import RunIndex, RunRow
from headway.spec import Job
from headway.spec.model import TargetEntry
from headway.storage import Store
from headway.targets.fake import FakeBehaviour, FakeTarget, Options
from tests.cli.conftest import Headway
from tests.contract.plays import FAKE, plan_play, play_of, write_project

WAITS = FakeBehaviour(lines=("waits",), until_stopped=True)
SHARED = FakeTarget(behaviour=play_of)


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
    SHARED.owners.clear()
    SHARED._attempts.clear()
    entry = TargetPlugin(f"{__name__}:Same", options=FAKE.options, extra=None, summary="in memory")
    monkeypatch.setattr(TargetPlugin, "load_target", lambda self: Same if self is entry else _loaded(self))
    monkeypatch.setitem(TARGETS, "fake", entry)


_loaded = TargetPlugin.load_target
HERE = TargetRef(name="fake", kind="fake", options={})


@pytest.fixture
def plan_of(tmp_path: Path) -> Callable[..., Plan]:
    project = write_project(tmp_path / "project")
    outputs = str(tmp_path / "runs")
    return lambda play=WAITS, **more: plan_play(project, play, **{"on": "fake", "outputs": outputs, **more})


def start(plan: Plan) -> lifecycle.RunHandle:
    return lifecycle.launch(plan, detach=True, target=SHARED)


def verdicts() -> dict[str, str]:
    return {found.handle.run: found.verdict for found in find_resources(HERE)}


def test_a_live_run_is_left_alone(plan_of: Callable[..., Plan]) -> None:
    hold = start(plan_of())
    assert verdicts() == {hold.run: LIVE}


def test_an_ended_run_that_nobody_took_down_is_an_orphan_and_gets_its_receipt(plan_of: Callable[..., Plan]) -> None:
    hold = start(plan_of())
    SHARED.end(hold.url, State.FINISHED)
    (found,) = find_resources(HERE)
    assert found.verdict == ORPHAN
    assert remove(found, say=print).left == ()
    assert find_resources(HERE) == []
    assert hold.folder.read_json("teardown.json")


def test_workers_without_a_folder_are_removed_too(plan_of: Callable[..., Plan]) -> None:
    hold = start(plan_of())
    SHARED._attempts.clear()
    shutil.rmtree(hold.url)
    (found,) = find_resources(HERE)
    assert (found.verdict, found.reason) == (ORPHAN, "its run folder no longer exists")
    remove(found, say=print)
    assert find_resources(HERE) == []


def test_a_folder_out_of_reach_condemns_nobody(plan_of: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.core.errors import Transient

    hold = start(plan_of())

    def refuse(handle: Handle) -> None:
        raise Transient("the bucket is out of reach")

    monkeypatch.setattr(SHARED, "status", refuse, raising=False)
    assert verdicts() == {hold.run: UNKNOWN}


def test_what_lives_is_no_orphan_for_a_date_which_may_be_our_clocks_fault(
    plan_of: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = start(plan_of())
    past_its_end(hold, monkeypatch)
    (found,) = find_resources(HERE)
    assert found.verdict == LIVE
    assert "past its deadline by this machine's clock" in found.reason


def test_what_is_past_its_latest_end_and_silent_is_an_orphan(
    plan_of: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = start(plan_of())
    past_its_end(hold, monkeypatch)
    elsewhere = {**json.loads(hold.folder.store.read("lease.json")), "boot": "another machine's"}
    hold.folder.write_json("lease.json", elsewhere)
    said: list[str] = []
    (found,) = find_resources(HERE, say=said.append, patience_s=0.2)
    assert found.verdict == ORPHAN
    assert "waiting" in said[0]

    renewals = iter(range(1000))
    read = lease.read

    def renewed(store: Store) -> tuple[lease.LeaseRecord | None, str]:
        store.write("lease.json", json.dumps({**elsewhere, "beat": next(renewals)}).encode())
        return read(store)

    monkeypatch.setattr(lease, "read", renewed)
    assert [found.verdict for found in find_resources(HERE, patience_s=0.2)] == [LIVE]


def past_its_end(hold: lifecycle.RunHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = SHARED.list_runs()
    old = replace(found, details={**found.details, "expires": time.time() - 5})
    monkeypatch.setattr(SHARED, "list_runs", lambda: [old], raising=False)


def as_another_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, user: str) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / f"home-of-{user}"))
    monkeypatch.setenv("USER", user)


@pytest.mark.parametrize("folder", ["readable", "hidden", "ended"])
def test_what_belongs_to_a_colleague_is_shown_and_left_to_them(
    headway: Headway, plan_of: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    as_another_user(monkeypatch, tmp_path, "alice")
    hold = start(plan_of())
    if folder == "ended":
        SHARED.end(hold.url, State.FINISHED)
    if folder == "hidden":
        (tmp_path / "runs").rename(tmp_path / "not-to-be-seen-from-here")
    as_another_user(monkeypatch, tmp_path, "bob")
    (found,) = find_resources(HERE)
    assert (found.verdict, found.reason) == (OTHER_OWNER, f"owned by alice@{socket.gethostname()}")
    said = headway("gc", "-y", "--on", "fake")
    assert said.code == 0, "a colleague's things are no reason for bob's exit code"
    assert "not yours" in said.out
    assert hold.url in SHARED.workers
    as_another_user(monkeypatch, tmp_path, "alice")
    assert verdicts()[hold.run] == {"readable": LIVE, "hidden": UNKNOWN, "ended": ORPHAN}[folder]
    SHARED._attempts.clear()


def test_what_a_colleague_has_resumed_is_the_colleagues(
    plan_of: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_another_user(monkeypatch, tmp_path, "alice")
    hold = start(plan_of())
    hold.stop()
    as_another_user(monkeypatch, tmp_path, "bob")
    lifecycle.resume(hold.url, target=SHARED)
    assert verdicts() == {hold.run: LIVE}
    as_another_user(monkeypatch, tmp_path, "alice")
    assert verdicts() == {hold.run: OTHER_OWNER}


def test_what_several_people_have_on_one_run_is_removed_by_none_of_them(
    plan_of: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = start(plan_of())
    SHARED.end(hold.url, State.STOPPED)
    (mine,) = SHARED.list_runs()
    theirs = replace(mine, details={"owner": "another", "owner_name": "bob@host-7"})
    for handles in ([mine, theirs], [theirs, mine]):
        monkeypatch.setattr(SHARED, "list_runs", lambda handles=handles: handles, raising=False)
        assert verdicts() == {hold.run: OTHER_OWNER}


def test_what_does_not_say_whose_it_is_goes_only_by_its_own_folders_word(plan_of: Callable[..., Plan]) -> None:
    ended, live, lost, hidden = (start(plan_of()) for _ in range(4))
    SHARED.end(ended.url, State.STOPPED)
    SHARED._attempts.pop(lost.url)
    SHARED._attempts.pop(hidden.url)
    SHARED.owners.clear()  # made by an older Headway
    shutil.rmtree(hidden.url)
    record = json.loads(lost.folder.store.read("lease.json"))
    lost.folder.write_json("lease.json", {**record, "holder": None})
    SHARED.workers[lost.url].clear()
    assert verdicts() == {ended.run: ORPHAN, live.run: LIVE, lost.run: UNKNOWN, hidden.run: UNKNOWN}


def test_a_folder_on_another_machine_or_on_a_disk_that_is_not_mounted_is_not_gone(
    headway: Headway, plan_of: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = start(plan_of())
    SHARED._attempts.clear()
    (tmp_path / "runs").rename(tmp_path / "unmounted")
    (found,) = find_resources(HERE)
    assert found.verdict == UNKNOWN
    assert "mount it" in found.reason
    said = headway("gc", "-y", "--on", "fake")
    assert said.code == 5
    assert "UNKNOWN, not removed" in said.out
    assert "nothing is left behind" not in said.out
    assert hold.url in SHARED.workers
    (tmp_path / "runs").mkdir()  # as it says for one that was deleted
    assert verdicts() == {hold.run: ORPHAN}
    with monkeypatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: "another-host")
        assert verdicts() == {hold.run: UNKNOWN}
    assert headway("gc", "-y", "--on", "fake").code == 0
    assert SHARED.workers == {}


def test_a_failed_run_that_is_kept_is_no_orphan_until_its_time_is_over(plan_of: Callable[..., Plan]) -> None:
    kept = lifecycle.launch(plan_of(), env={"HEADWAY_KEEP_ON_FAILURE_S": "3600"}, detach=True, target=SHARED)
    SHARED.end(kept.url, State.FAILED, reason="x", exit_code=1)
    assert verdicts() == {kept.run: LIVE}
    assert kept.outcome().receipt is None  # whoever looks leaves it alone
    assert find_resources(HERE)
    over = lifecycle.launch(plan_of(), env={"HEADWAY_KEEP_ON_FAILURE_S": "0.000001"}, detach=True, target=SHARED)
    SHARED.end(over.url, State.FAILED, reason="x", exit_code=1)
    assert verdicts()[over.run] == ORPHAN


def test_places_are_those_of_the_job_file_and_of_runs_not_seen_to_their_end(plan_of: Callable[..., Plan]) -> None:
    job = Job(name="j", script="t.py", targets={"mine": TargetEntry(kind="slurm", options={"partition": "p"})})
    assert [place.name for place in target_refs(job)] == ["local", "mine"]
    start(plan_of())
    assert [place.name for place in target_refs(None)] == ["local", "fake"]
    assert [place.kind for place in target_refs(job, on="mine")] == ["slurm"]
    assert [place.kind for place in target_refs(None, on="docker")] == ["docker"]


def test_without_any_index_the_job_file_is_enough(plan_of: Callable[..., Plan]) -> None:
    start(plan_of())
    RunIndex().path.unlink()
    job = Job(name="j", script="t.py", targets={"there": TargetEntry(kind="fake")})
    assert [place.kind for place in target_refs(job)] == ["local", "fake"]


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
    monkeypatch.setattr(SHARED, "list_runs", refuse, raising=False)
    said = headway("gc")
    assert said.code == 0
    assert "fake could not be searched: the cluster is out of reach" in said.out
    assert "nothing is left behind on the targets that were searched; NOT SEARCHED: fake" in said.out
    assert headway("gc", "--on", "fake").code == 1


def test_gc_of_an_empty_place_is_quickly_done(headway: Headway) -> None:
    assert headway("gc", "--on", "fake").code == 0


def test_down_names_what_goes_on_costing(
    headway: Headway, plan_of: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = start(plan_of())
    monkeypatch.setattr(SHARED, "billable_resources", lambda: ["2 nodes in pool gpu, $1.46/h"])
    assert "still billed: 2 nodes in pool gpu, $1.46/h" in headway("down", hold.run).out

    def refuse() -> list[str]:
        raise TargetError("the cluster is out of reach")

    monkeypatch.setattr(SHARED, "billable_resources", refuse)
    said = headway("down", hold.run)
    assert said.code == 0
    assert "unknown: the cluster is out of reach" in said.out


def test_a_run_that_several_targets_show_is_one_row_and_is_removed_from_all(plan_of: Callable[..., Plan]) -> None:
    """As two targets of a job file that share a cluster's namespace do."""
    hold = start(plan_of())
    SHARED.end(hold.url, State.FINISHED)
    other = replace(HERE, name="other")
    (found,) = deduplicate([*find_resources(HERE), *find_resources(other)])
    assert (found.names, found.verdict) == ("fake, other", ORPHAN)
    asked: list[str] = []
    receipt = remove(found, say=asked.append)
    assert receipt.removed
    assert receipt.left == ()
    assert find_resources(HERE) == []


def test_of_two_verdicts_on_one_run_the_careful_one_counts(plan_of: Callable[..., Plan]) -> None:
    hold = start(plan_of())
    (found,) = find_resources(HERE)
    unknown = replace(found, verdict=UNKNOWN, target_ref=replace(HERE, name="other"))
    orphan = replace(found, verdict=ORPHAN)
    (row,) = deduplicate([orphan, unknown])
    assert row.verdict == UNKNOWN
    hold.down()


def test_a_target_that_cannot_be_asked_makes_a_run_unknown_and_not_gone(
    plan_of: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hold = start(plan_of())
    unknown = Status(state=State.UNKNOWN, reason="out of reach")
    with monkeypatch.context() as asked:
        asked.setattr(FakeTarget, "status", lambda self, handle: unknown)
        (found,) = find_resources(HERE)
    assert (found.verdict, found.reason) == (UNKNOWN, "out of reach")
    row = RunRow(name="r1", url=hold.url, target="fake", job="j", created=0.0, state="running")

    def state_if(error: Exception, url: str = hold.url) -> str:
        def fails(url: str) -> None:
            raise error

        monkeypatch.setattr(lifecycle, "observe", fails)
        return refreshed(replace(row, url=url)).state

    assert state_if(TargetError("logged out")) == "unknown"
    assert state_if(UnknownRun("no plan")) == "gone"
    assert state_if(UnknownRun("no plan"), str(tmp_path / "not-mounted/runs/r1")) == "unknown"
    hold.down()
