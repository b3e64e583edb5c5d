"""A run goes on elsewhere: with its own code and its own order, or not at all."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import BadInput, BadJob, RunBusy, TargetError
from headway.core.types import Handle, State
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.launcher.migrate import MOVED, Migration
from headway.planning import plan
from headway.rundir.layout import PLAN, SUBMISSION
from headway.spec import Data, Job, Source, TargetEntry
from headway.targets.local.target import LocalTarget
from tests.contract.counting import COUNT, count_to, counted, write_counting
from tests.testbed.sshd import Server, lacking
from tests.waiting import wait_until

OTHER = {"other": TargetEntry(kind="local", options={"python": sys.executable})}


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


@pytest.fixture
def job_of(tmp_path: Path) -> Callable[..., Job]:
    project = write_counting(tmp_path / "project")

    def made(**more: Any) -> Job:
        keys: dict[str, Any] = {
            "args": ("12", "0.01", "4"),
            "targets": OTHER,
            "outputs": str(tmp_path / "runs"),
            **more,
        }
        return Job(name="counts", script=COUNT, root=str(project), **keys)

    return made


def stopped(job: Job, name: str = "mine") -> RunHandle:
    hold = lifecycle.launch(plan(job), name=name, detach=True)
    wait_until(lambda: len(counted(hold)) == 4, "it counts")
    assert hold.stop("to move it").status.state is State.STOPPED
    return hold


def finished(hold: RunHandle) -> list[str]:
    outcome = hold.wait()
    assert outcome.status.state is State.FINISHED, [line.text for line in hold.logs()]
    return counted(hold)


@pytest.mark.slow
def test_it_goes_on_on_another_target_where_it_was(job_of: Callable[..., Job]) -> None:
    hold = stopped(job_of())
    again = lifecycle.resume(hold.url, move=Migration(on="other"))
    assert finished(again) == count_to(12)
    assert again.folder.plan().target == "other"
    known = json.loads(again.folder.store.read(SUBMISSION))
    assert (known["target"], known["attempts"][-1]["code_is"]) == ("other", "recorded")
    (kept,) = again.folder.store.list("plans/")
    assert json.loads(again.folder.store.read(kept.key))["target"] == "local"
    assert lifecycle.observe(hold.url).exit_code == 0


@pytest.mark.slow
def test_the_recorded_code_goes_on_whatever_was_edited_since_unless_asked_for(
    job_of: Callable[..., Job], tmp_path: Path
) -> None:
    job = job_of()
    one, two = stopped(job, "one"), stopped(job, "two")
    script = tmp_path / "project" / COUNT
    script.write_text(script.read_text().replace("counted", "edited"))
    again = lifecycle.resume(one.url, move=Migration(on="other"))
    again.wait()
    assert not any("edited" in line.text for line in again.logs())
    current = lifecycle.resume(two.url, move=Migration(on="other", code="current", job=job))
    current.wait()
    assert any("edited" in line.text for line in current.logs())
    assert json.loads(current.folder.store.read(SUBMISSION))["attempts"][-1]["code_is"] == "current"
    assert current.folder.plan().code.sha256 != again.folder.plan().code.sha256
    with pytest.raises(BadInput, match="needs the job file"):
        lifecycle.resume(stopped(job, "three").url, move=Migration(on="other", code="current"))


def test_a_start_that_fails_there_leaves_the_run_where_it_was(
    job_of: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = stopped(job_of())
    planned = hold.folder.store.read(PLAN)

    def refuse(*_: object) -> Handle:
        raise TargetError("there is no room")

    with monkeypatch.context() as patch:
        patch.setattr(LocalTarget, "submit", refuse)
        with pytest.raises(TargetError):
            lifecycle.resume(hold.url, move=Migration(on="other"))
    assert hold.folder.store.read(PLAN) == planned
    assert json.loads(hold.folder.store.read(SUBMISSION))["target"] == "local"
    assert finished(lifecycle.resume(hold.url))[-1].startswith("digest")


def test_a_live_run_is_not_moved(job_of: Callable[..., Job]) -> None:
    hold = lifecycle.launch(plan(job_of(args=("12", "0", "1"))), name="live", detach=True)
    wait_until(lambda: len(counted(hold)) >= 1, "it counts")
    with pytest.raises(RunBusy):
        lifecycle.resume(hold.url, move=Migration(on="other"))
    hold.down()


def test_a_target_that_nobody_knows_is_refused(job_of: Callable[..., Job]) -> None:
    hold = stopped(job_of())
    with pytest.raises(BadInput, match="no target is called 'moon'"):
        lifecycle.resume(hold.url, move=Migration(on="moon"))


def test_todays_job_file_may_describe_the_target(job_of: Callable[..., Job]) -> None:
    hold = stopped(job_of(targets={}))
    today = job_of(targets={"new": TargetEntry(kind="local")})
    assert finished(lifecycle.resume(hold.url, move=Migration(on="new", job=today)))[-1].startswith("digest")


def test_what_the_other_target_cannot_see_is_refused_with_the_way_to_move_it(
    job_of: Callable[..., Job], tmp_path: Path
) -> None:
    entry = {"pair": TargetEntry(kind="ssh", options={"hosts": ["a", "b"]})}
    job = job_of(targets=entry)
    hold = stopped(job)
    recorded = json.loads(hold.folder.store.read(PLAN))
    recorded["job"]["resources"]["nodes"] = 2
    hold.folder.store.write(PLAN, json.dumps(recorded).encode())
    with pytest.raises(BadJob) as caught:
        lifecycle.resume(hold.url, move=Migration(on="pair"))
    assert "on this machine alone" in str(caught.value)
    assert "--copy-to" in str(caught.value)


def test_folder_and_data_are_moved_by_fingerprint_and_the_price_is_shown_first(
    job_of: Callable[..., Job], tmp_path: Path
) -> None:
    data = tmp_path / "words"
    data.mkdir()
    (data / "a.txt").write_text("alpha" * 100)
    (data / "b.txt").write_text("beta")
    hold = stopped(job_of(data=Data(train=(Source(source=str(data)),))))
    away, shown = str(tmp_path / "away"), []
    with pytest.raises(BadInput, match="nothing was copied"):
        lifecycle.resume(
            hold.url, move=Migration(on="other", copy_to=away, confirm=lambda text: bool(shown.append(text)))
        )
    assert not Path(away).exists()
    (words,) = shown
    assert "GB" in words
    assert str(data) in words
    again = lifecycle.resume(hold.url, move=Migration(on="other", copy_to=away))
    assert again.url == f"{away}/mine"
    assert finished(again) == count_to(12)
    (there,) = [Path(source) for source in again.folder.plan().data]
    assert there.is_relative_to(f"{away}/data")
    assert hashlib.sha256((there / "a.txt").read_bytes()).digest() == hashlib.sha256(b"alpha" * 100).digest()
    assert hold.folder.read_json(MOVED)
    with pytest.raises(RunBusy, match="was moved to"):
        lifecycle.resume(hold.url)


@pytest.mark.ci
@pytest.mark.ssh
@pytest.mark.slow
@pytest.mark.skipif(bool(lacking()), reason=f"no sshd here: {lacking()}")
def test_from_here_to_a_machine_reached_by_ssh_and_back(job_of: Callable[..., Job], tmp_path: Path) -> None:
    server = Server(tmp_path / "sshd")
    server.start()
    try:
        options = {
            "host": "box",
            "config": str(server.config),
            "dir": str(tmp_path / "there"),
            "python": sys.executable,
        }
        entries = {**OTHER, "box": TargetEntry(kind="ssh", options=options)}
        hold = stopped(job_of(targets=entries, args=("12", "0.01", "4,8")))
        there = lifecycle.resume(hold.url, move=Migration(on="box"))
        wait_until(lambda: len(counted(there)) == 8, "it goes on there")
        assert there.stop().status.state is State.STOPPED
        back = lifecycle.resume(there.url, move=Migration(on="local"))
        assert finished(back) == count_to(12)
    finally:
        server.stop()
