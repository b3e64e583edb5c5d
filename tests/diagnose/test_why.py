"""`headway why`: from a run's folder and its target's words to a cause; an unknown one shows one rank's last lines."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli import main
from headway.cli.inspect import describe_cause, describe_status, facts
from headway.core.errors import BadJob, TargetError
from headway.core.types import Handle, State, Status
from headway.diagnose.diagnosis import diagnose_run
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.planning import Plan
from headway.plugins import TARGETS
from headway.spec import load
from headway.targets.fake import FakeBehaviour, FakeTarget
from tests.contract.plays import FAKE, plan_play, play_of, write_project


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(TARGETS, "fake", FAKE)


@pytest.fixture
def ended(tmp_path: Path) -> Callable[..., RunHandle]:
    project = write_project(tmp_path / "project")
    outputs = f"memory://{os.urandom(6).hex()}/runs"

    def run(*lines: str, code: int = 1, ranks: int = 1, target: FakeTarget | None = None) -> RunHandle:
        plan: Plan = plan_play(
            project, FakeBehaviour(lines=lines, exit_code=code), on="fake", outputs=outputs, ranks=ranks
        )
        return lifecycle.launch(plan, target=target or FakeTarget(behaviour=play_of))

    return run


def test_a_known_failure_has_cause_evidence_and_fix(ended: Callable[..., RunHandle]) -> None:
    hold = ended("epoch 1", "ModuleNotFoundError: No module named 'albumentations'")
    found = diagnose_run(hold, hold.target.status(hold.target_handle))
    assert found.name == "missing-module"
    assert found.evidence == "ModuleNotFoundError: No module named 'albumentations'"
    text = describe_cause(found)
    assert "albumentations" in text
    assert "requirements.txt" in text


def test_an_unknown_failure_shows_the_last_words_of_the_first_rank_that_failed(ended: Callable[..., RunHandle]) -> None:
    hold = ended("rank {rank} is here", "rank {rank}: the frobnicator is jammed", ranks=3)
    found = diagnose_run(hold, hold.target.status(hold.target_handle))
    assert (found.name, found.rank) == ("", 0)
    assert found.lines == ("rank 0 is here", "rank 0: the frobnicator is jammed")
    assert "rank 1" not in describe_cause(found)


def test_what_was_said_last_comes_before_a_warning_from_long_ago(ended: Callable[..., RunHandle]) -> None:
    hold = ended("quota exceeded for a logger, going on", *["step"] * 100, "IndexError: index out of range in self")
    assert diagnose_run(hold, hold.target.status(hold.target_handle)).name == "device-side-assert"
    early = ended("No space left on device", *["step"] * 100, "the end")
    assert diagnose_run(early, early.target.status(early.target_handle)).name == "disk-full"


def test_a_run_that_did_not_fail_has_nothing_to_explain(ended: Callable[..., RunHandle]) -> None:
    hold = ended("CUDA out of memory, tried again with less", code=0)
    found = diagnose_run(hold, hold.target.status(hold.target_handle))
    assert found.name == ""
    assert "nothing has failed" in describe_cause(found)


class Telling(FakeTarget):
    """A target that has words of its own about a run."""

    words: tuple[str, ...] = ('Back-off pulling image "registry.internal/captions:3"',)

    def evidence(self, handle: Handle) -> list[str]:
        if not self.words:
            raise TargetError("the cluster is out of reach")
        return list(self.words)


def test_what_the_target_itself_says_counts_also_for_a_run_that_never_starts(
    tmp_path: Path, ended: Callable[..., RunHandle]
) -> None:
    project = write_project(tmp_path / "waiting")
    plan = plan_play(project, FakeBehaviour(), on="fake", outputs=f"memory://{os.urandom(6).hex()}/runs")
    hold = lifecycle.launch(plan, target=Telling(), detach=True)
    status = hold.target.status(hold.target_handle)
    assert status.state is State.PENDING
    assert diagnose_run(hold, status).name == "image-pull"


def test_what_the_target_said_of_the_start_does_not_explain_a_rank_that_failed_later(
    ended: Callable[..., RunHandle],
) -> None:
    target = Telling(behaviour=play_of)
    target.words = ("FailedScheduling: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",)
    hold = ended("ModuleNotFoundError: No module named 'albumentations'", target=target)
    assert diagnose_run(hold, hold.target.status(hold.target_handle)).name == "missing-module"
    unknown = ended("the frobnicator is jammed", target=target)
    assert diagnose_run(unknown, unknown.target.status(unknown.target_handle)).name == "no-node-fits", (
        "better than nothing"
    )


def test_a_target_out_of_reach_does_not_keep_the_folder_from_speaking(ended: Callable[..., RunHandle]) -> None:
    target = Telling(behaviour=play_of)
    target.words = ()
    hold = ended("RuntimeError: No CUDA GPUs are available", target=target)
    assert diagnose_run(hold, hold.target.status(hold.target_handle)).name == "no-gpu"


def test_a_killed_rank_is_explained_by_its_signal(tmp_path: Path) -> None:
    project = write_project(tmp_path / "killed")
    plan = plan_play(
        project, FakeBehaviour(until_stopped=True), on="fake", outputs=f"memory://{os.urandom(6).hex()}/runs"
    )
    target = FakeTarget(behaviour=play_of)
    hold = lifecycle.launch(plan, target=target, detach=True)
    target._write_event(hold.url, kind="rank_exit", rank=0, code=137, signal="SIGKILL", lines=[], first=True)
    target.end(hold.url, State.FAILED, reason="rank 0 was killed (SIGKILL)", exit_code=1)
    assert diagnose_run(hold, hold.target.status(hold.target_handle)).name == "host-out-of-memory"


def test_a_run_that_waits_in_vain_is_explained_by_what_its_target_says_of_it(tmp_path: Path) -> None:
    project = write_project(tmp_path / "waiting")
    plan = plan_play(project, FakeBehaviour(), on="fake", outputs=f"memory://{os.urandom(6).hex()}/runs")
    hold = lifecycle.launch(plan, target=FakeTarget(), detach=True)
    waits = Status(state=State.PENDING, reason="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    assert diagnose_run(hold, waits).name == "no-node-fits"
    assert "nothing has failed" in describe_cause(
        diagnose_run(hold, Status(state=State.PENDING, reason="is being submitted"))
    )


def test_any_log_file_is_explained_with_the_rules_of_the_job_file_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    trace = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
    (tmp_path / "train.log").write_text(f"{trace}ModuleNotFoundError: No module named 'albumentations'\n")
    assert main(["why", "train.log"]) == 0
    told = capsys.readouterr().out
    assert "albumentations" in told
    assert "train.py:3" in told
    assert "do not retry" in told
    (tmp_path / "own.log").write_text("E: seat on lic1 taken {x}\n")
    assert main(["why", "own.log"]) == 0
    assert "unknown failure" in capsys.readouterr().out
    rule = "{match: 'seat on (?P<host>\\S+) taken', cause: 'no seat on {host} {', fix: ask ops, retry: wait}"
    (tmp_path / "headway.yaml").write_text(f"name: x\ncommand: ['true']\nexplain: [{rule}]\n")
    assert main(["why", "own.log"]) == 0
    told = capsys.readouterr().out
    assert "no seat on lic1 {" in told
    assert "wait and retry" in told


def test_a_pattern_of_the_job_file_that_is_no_regular_expression_is_refused(tmp_path: Path) -> None:
    (tmp_path / "headway.yaml").write_text("name: x\ncommand: ['true']\nexplain: [{match: 'a(', cause: b}]\n")
    with pytest.raises(BadJob, match="not a regular expression"):
        load(tmp_path / "headway.yaml")


def test_why_and_status_name_the_class_of_a_failure_and_the_decision(tmp_path: Path) -> None:
    project, outputs = write_project(tmp_path / "decided"), f"memory://{os.urandom(6).hex()}/runs"
    target = FakeTarget(behaviour=play_of)
    plan = plan_play(project, FakeBehaviour(until_stopped=True), on="fake", outputs=outputs)
    hold = lifecycle.launch(plan, target=target, detach=True)
    fault = {"class": "retry once", "cause": "unknown failure", "decision": "not retried", "reason": "second time"}
    target._write_event(hold.url, kind="rank_exit", rank=0, code=1, lines=["it is jammed"], first=True)
    target._write_event(hold.url, kind="fault", **fault)
    target.end(hold.url, State.FAILED, reason="rank 0 exited with code 1", exit_code=1)
    found = diagnose_run(hold, hold.target.status(hold.target_handle))
    assert found.decided == "not retried (second time)"
    assert "not retried (second time)" in describe_cause(found)
    shown = describe_status(facts(hold, hold.target.status(hold.target_handle)))
    assert "unknown failure (retry once): not retried" in shown
