"""A run is found by what people type, and understood from its folder alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from headway.core import platform
from headway.core.errors import BadPlan, RunBusy, UnknownRun
from headway.core.types import Handle, State, Status
from headway.launcher import lifecycle
from headway.planning import Plan
from headway.plugins import TARGETS
from headway.rundir import lease, submission
from headway.rundir.index import RunIndex, RunRow
from headway.rundir.layout import PLAN, SUBMISSION, RunFolder, SegmentWriter
from headway.rundir.status import StatusPoller, end_check, find, folder_status, is_local_key, local_dir, rows_below
from headway.storage import open_store
from headway.targets.fake import FakeBehaviour, FakeTarget
from tests.contract.plays import FAKE, plan_play, play_of, write_project


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def known(tmp_path: Path) -> Callable[..., str]:
    """Put a run into the index, with a folder that has a plan in it."""
    ages = iter(range(1000))

    def add(name: str, outputs: str = "runs") -> str:
        folder = tmp_path / outputs / name
        folder.mkdir(parents=True)
        (folder / PLAN).write_text("{}")
        RunIndex().record(RunRow(name=name, url=str(folder), target="local", job="j", created=float(next(ages))))
        return str(folder)

    return add


def test_a_run_is_found_by_name_prefix_folder_url_and_as_the_last(known: Callable[..., str]) -> None:
    first, second = known("cap-1"), known("tra-1")
    assert find("cap-1").url == first
    assert find("tr").url == second
    assert find("last").url == second
    assert find("./runs/cap-1").url == find(first).url == find(f"{first}/").url == first
    assert find(f"file://{first}").url == first
    assert (find("gs://bucket/runs/x-1/").name, find("s3://bucket/x-1").url) == ("x-1", "s3://bucket/x-1")


def test_files_that_any_registered_target_keeps_on_one_machine_are_not_the_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(TARGETS, "added", FAKE)
    for kind in TARGETS:
        assert is_local_key(local_dir(str(tmp_path), kind).relative_to(tmp_path).joinpath("pid").as_posix())
    assert not any(is_local_key(key) for key in (PLAN, SUBMISSION, "events/0001", "files/local/pid", "locals/x"))


def test_a_follower_asks_the_target_seldom_and_ends_with_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []
    recorded: list[SimpleNamespace | None] = [None]
    clock = [0.0]
    monkeypatch.setattr("headway.rundir.status.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("headway.rundir.status.read_status_inputs", lambda folder: SimpleNamespace(end=recorded[0]))

    def status(handle: Handle) -> Status:
        asked.append(handle.run)
        return Status(state=State.RUNNING)

    handle = Handle(target="fake", run="r", url=str(tmp_path), details={})
    ended = end_check(handle, status, folder_poll_s=1.0, status_poll_s=10.0)
    assert [ended() for clock[0] in (0.0, 0.5, 1.0, 9.0)] == [False] * 4
    assert asked == ["r"], "once at the start, then not before ten seconds have passed"
    clock[0] = 10.0
    assert not ended()
    assert asked == ["r", "r"]
    recorded[0] = SimpleNamespace(state=State.FINISHED)
    clock[0] = 11.0
    assert ended()
    assert asked == ["r", "r"], "the folder is enough"


def test_a_name_that_is_also_a_prefix_means_the_run_of_that_name(known: Callable[..., str]) -> None:
    exact = known("cap-1")
    known("cap-10")
    assert find("cap-1").url == exact


def test_an_ambiguous_prefix_lists_the_candidates(known: Callable[..., str]) -> None:
    for number in range(12):
        known(f"cap-{number:02d}")
    with pytest.raises(UnknownRun, match=r"cap-11, cap-10, .* and 2 more"):
        find("cap")


def test_one_name_in_two_places_is_told_apart_by_folder(known: Callable[..., str]) -> None:
    first, second = known("cap-1", "here"), known("cap-1", "there")
    with pytest.raises(UnknownRun, match=f"{second}, {first}"):
        find("cap-1")


def test_an_unknown_run_is_answered_with_what_was_probably_meant(known: Callable[..., str]) -> None:
    known("captions-1")
    with pytest.raises(UnknownRun, match="did you mean captions-1"):
        find("captoins-1")
    with pytest.raises(UnknownRun, match="fix: headway ps"):
        find("zebra")
    with pytest.raises(UnknownRun, match="does not exist"):
        find("./nowhere")
    with pytest.raises(UnknownRun, match=r"it has no plan\.json"):
        find(".")


def test_there_is_no_last_run_before_the_first() -> None:
    with pytest.raises(UnknownRun, match="headway run"):
        find("last")


def test_a_run_whose_folder_was_deleted_is_passed_over(known: Callable[..., str]) -> None:
    kept, deleted = known("cap-1"), known("cap-2")
    os.remove(f"{deleted}/{PLAN}")
    assert find("cap").url == find("last").url == kept
    with pytest.raises(UnknownRun, match="does not exist"):
        find("cap-2")


def test_a_deleted_run_is_never_mistaken_for_one_that_begins_like_it(known: Callable[..., str]) -> None:
    deleted = known("cap-1")
    known("cap-10")
    os.remove(f"{deleted}/{PLAN}")
    with pytest.raises(UnknownRun, match="does not exist"):
        find("cap-1")


def test_a_run_below_the_usual_outputs_is_found_without_an_index(known: Callable[..., str]) -> None:
    folder = known("cap-1")
    RunIndex().path.unlink()
    assert find("cap-1").url == folder


def test_a_lost_index_is_rebuilt_from_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "fake", FAKE)
    project, target = write_project(tmp_path / "p"), FakeTarget(behaviour=play_of)
    for name, play in {"good": FakeBehaviour(), "bad": FakeBehaviour(exit_code=3)}.items():
        made = plan_play(project, play, on="fake", outputs=str(tmp_path / "runs"))
        lifecycle.launch(made, name=name, target=target)
    (tmp_path / "runs" / "not-a-run").mkdir()
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / PLAN).write_text("{")
    before = {(row.name, row.state, row.created) for row in RunIndex().rows()}
    RunIndex().path.unlink()
    assert RunIndex().rebuild("runs") == 2
    assert {(row.name, row.state, row.created) for row in RunIndex().rows()} == before
    assert list(rows_below("memory://empty/runs")) == []


# What a folder says.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setitem(TARGETS, "fake", FAKE)
    made: Plan = plan_play(write_project(tmp_path / "p"), FakeBehaviour(), on="fake", outputs="memory://runs")
    folder = RunFolder(open_store(f"memory://{os.urandom(4).hex()}/run"))
    folder.store.write(PLAN, made.to_json().encode())
    submission.record_submission(folder, made)
    return folder


def tell(folder: RunFolder, attempt: int, **event: object) -> None:
    writer = SegmentWriter(folder.store, "events", attempt)
    writer.add(json.dumps(event))
    writer.flush()


def hold(folder: RunFolder, attempt: int, **changes: object) -> None:
    me = {"attempt": attempt, "holder": "h", "host": "far", "boot": "other", "pid": 1, "started": "1", "beat": 0}
    folder.write_json(lease.KEY, {**me, **changes})


def test_before_the_first_attempt_a_run_is_pending(folder: RunFolder) -> None:
    assert folder_status(folder).state is State.PENDING


@pytest.mark.parametrize("state", ["finished", "failed", "budget", "stopped"])
def test_the_newest_attempts_own_word_counts(folder: RunFolder, state: str) -> None:
    hold(folder, 1, holder=None)
    tell(folder, 1, kind="ended", state=state, reason="so it was", exit_code=3)
    found = folder_status(folder)
    assert (found.state.value, found.reason, found.exit_code) == (state, "so it was", 3)


def test_the_end_of_an_earlier_attempt_is_not_the_end_of_this_one(folder: RunFolder) -> None:
    tell(folder, 1, kind="ended", state="stopped")
    hold(folder, 2, boot=platform.pid_namespace_id(), pid=os.getpid(), started=platform.process_start_time(os.getpid()))
    assert folder_status(folder).state is State.RUNNING


def test_a_resumed_run_is_pending_until_its_new_attempt_begins(folder: RunFolder) -> None:
    hold(folder, 1, holder=None)
    tell(folder, 1, kind="ended", state="stopped")
    submission.record_resubmission(folder, after=1)
    assert folder_status(folder).state is State.PENDING
    submission.record_failed_submission(folder, RuntimeError("no room"))
    assert folder_status(folder).state is State.STOPPED


def test_a_killed_holder_is_seen_at_once_on_its_own_host(folder: RunFolder) -> None:
    hold(folder, 1, boot=platform.pid_namespace_id(), pid=os.getpid(), started="another process had this pid")
    assert folder_status(folder).state is State.LOST


def test_a_lease_given_up_without_a_word_is_a_lost_run(folder: RunFolder) -> None:
    hold(folder, 1, holder=None)
    assert folder_status(folder).state is State.LOST


def test_a_holder_elsewhere_is_lost_only_after_it_was_quiet_for_long_enough(folder: RunFolder) -> None:
    hold(folder, 1)
    time = 0.0
    watch = StatusPoller(folder, stale_s=60, clock=lambda: time)
    assert watch.status().state is State.RUNNING
    time = 59.0
    assert watch.status().state is State.RUNNING
    hold(folder, 1, beat=1)
    time = 118.0
    assert watch.status().state is State.RUNNING
    time = 178.5
    assert watch.status().state is State.LOST


def test_damage_is_said_and_is_not_taken_for_absence(folder: RunFolder) -> None:
    folder.store.write(SUBMISSION, b"{ half a reco")
    assert folder_status(folder).state is State.PENDING, "the plan still says where the run belongs"
    folder.store.write(PLAN, b"\x00\x01")
    with pytest.raises(BadPlan, match="not a plan"):
        folder_status(folder)


def test_of_two_resumes_at_once_one_is_refused(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = submission.read

    def slow_read(of: RunFolder) -> dict[str, object]:
        found = reading(of)
        monkeypatch.setattr(submission, "read", reading)
        submission.record_resubmission(of, after=1)  # somebody else, between our look and our write
        return found

    monkeypatch.setattr(submission, "read", slow_read)
    with pytest.raises(RunBusy):
        submission.record_resubmission(folder, after=1)
    assert len(submission.read(folder)["attempts"]) == 2
