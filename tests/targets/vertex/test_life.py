"""What happens to a run on Vertex AI: several machines, preemption, restarts, cancels, and what is said of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import BadInput
from headway.core.plan import Limits
from headway.core.types import State
from headway.launcher import lifecycle
from headway.spec import Accelerator, Budget, Resources
from headway.targets.fake import FakeBehaviour
from headway.targets.vertex import lifecycle as vertex_lifecycle
from tests.contract.plays import FORGETFUL, write_forgetful
from tests.contract.suite import WAITS
from tests.targets.test_slurm import CHAIN
from tests.targets.vertex.jobs import ready_image
from tests.targets.vertex.lab import Lab, attempts
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def test_machines_of_two_pools_find_each_other_by_cluster_spec(lab: Lab) -> None:
    hold = lab.start(FakeBehaviour(lines=("rank {rank} of {world}, {AIP_MODEL_DIR}",)), nodes=3)
    assert hold.wait().status.state is State.FINISHED
    (job,) = lab.server.jobs.values()
    assert [pool["replicaCount"] for pool in job["jobSpec"]["workerPoolSpecs"]] == ["1", "2"]
    model = f"{hold.url}/vertex/model/"
    assert [lab.texts(hold, rank) for rank in range(3)] == [[f"rank {rank} of 3, {model}"] for rank in range(3)]
    (event,) = [event for event in hold.folder.events() if event["kind"] == "attempt"]
    assert event["world"]["source"] == "Vertex AI's CLUSTER_SPEC"


def test_a_preempted_run_goes_on_from_its_last_checkpoint_as_if_nothing_had_happened(lab: Lab) -> None:
    (lab.project / "play.py").write_text(CHAIN)
    straight = lab.start(FakeBehaviour())
    assert straight.wait().status.state is State.FINISHED
    resources = Resources(spot=True, processes=1)
    hold = lab.start(FakeBehaviour(), resources=resources, env={"STOP_AT": "5"}, budget=Budget(hours=1))
    lab.prints(hold, 5)
    assert hold.target.status(hold.target_handle).state is State.RUNNING
    lab.machines(hold).preempt("workerpool0-0")
    assert hold.wait().status.state is State.FINISHED
    assert attempts(hold) == 2
    assert lab.texts(hold)[-1] == lab.texts(straight)[-1]
    assert lab.server.jobs[hold.target_handle.details["job"]]["jobSpec"]["scheduling"]["strategy"] == "SPOT"
    starts = [event["held_from_s"] for event in hold.folder.events() if event["kind"] == "attempt"]
    assert starts[1] > starts[0] == 0.0, "what Vertex AI starts again is spent from the same budget"


def test_a_run_between_two_machines_has_not_ended(lab: Lab) -> None:
    hold = lab.prints(lab.start(WAITS))
    job = lab.server.jobs[hold.target_handle.details["job"]]
    lab.machines(hold).preempt("workerpool0-0")
    wait_until(lambda: attempts(hold) == 2, "it is started again")
    assert job["state"] == "JOB_STATE_RUNNING"
    assert hold.stop("enough").status.state is State.STOPPED
    assert job["state"] == "JOB_STATE_CANCELLED"
    assert hold.target.list_runs() == []


def test_a_machine_of_a_gang_that_is_gone_is_replaced_and_the_gang_starts_again(lab: Lab) -> None:
    hold = lab.prints(lab.start(WAITS, nodes=2, retries=3), rank=1)
    lab.machines(hold).crash("workerpool1-0")
    lab.prints(hold, 2)
    assert attempts(hold) == 2
    assert hold.target.status(hold.target_handle).state is State.RUNNING


def test_a_primary_machine_that_is_gone_is_an_attempt_more(lab: Lab) -> None:
    hold = lab.prints(lab.start(WAITS))
    lab.machines(hold).crash("workerpool0-0")
    wait_until(lambda: attempts(hold) == 2, "Vertex AI starts it again")
    lab.prints(hold, 2)
    assert hold.stop().status.state is State.STOPPED


def test_a_script_that_would_start_from_the_beginning_is_not_paid_for_again_when_its_machine_is_gone(
    lab: Lab, tmp_path: Path
) -> None:
    script = {"script": FORGETFUL, "root": str(write_forgetful(tmp_path / "forgetful")), "args": ()}
    hold = lab.prints(lab.start(FakeBehaviour(), **script))
    assert hold.folder.plan().resume == "beginning"
    lab.machines(hold).crash("workerpool0-0")
    assert lab.ends(hold) is State.FAILED
    reason = hold.target.status(hold.target_handle).reason
    assert "not restarted automatically" in reason
    assert f"headway resume {hold.run}" in reason
    assert lab.texts(hold) == ["begins"]
    again = lifecycle.resume(hold.url, target=hold.target)
    lab.prints(again, 2)
    assert again.stop().status.state is State.STOPPED


def test_vertexs_own_retries_do_not_train_again_what_has_failed(lab: Lab) -> None:
    hold = lab.start(FakeBehaviour(lines=("once",), exit_code=7))
    wait_until(lambda: lab.machines(hold).starts >= 3, "Vertex AI starts it again and again")
    assert hold.target.status(hold.target_handle).state is State.FAILED
    assert attempts(hold) == 1
    assert lab.texts(hold) == ["once"]
    outcome = hold.outcome()
    assert (outcome.status.state, outcome.exit_code) == (State.FAILED, 1)
    assert outcome.receipt is not None
    assert outcome.receipt.left == ()
    assert lab.server.live() == []


def test_a_resumed_run_is_given_only_what_is_left_of_its_budget(lab: Lab) -> None:
    hold = lab.prints(lab.start(WAITS, budget=Budget(hours=2)))
    hold.stop()
    first = json.loads(hold.folder.store.read("intent.json"))["details"]["job"]
    again = lifecycle.resume(hold.url, target=hold.target)
    lab.holds.append(again)
    seconds = [
        float(lab.server.jobs[name]["jobSpec"]["scheduling"]["timeout"].removesuffix("s"))
        for name in (first, str(again.target_handle.details["job"]))
    ]
    assert seconds[1] < seconds[0] == 2 * 3600 + 10 + 600


@pytest.mark.parametrize("waiting", [True, False])
def test_a_cancel_in_the_console_is_seen(lab: Lab, waiting: bool) -> None:
    if waiting:
        lab.server.full.add("us-east1")
    hold = lab.start(WAITS)
    if not waiting:
        lab.prints(hold)
    status = hold.target.status(hold.target_handle)
    assert status.state is (State.PENDING if waiting else State.RUNNING)
    assert "Vertex AI job 5000000001 in us-east1" in status.reason
    lab.machines(hold).cancel()
    assert lab.ends(hold) is State.STOPPED
    if waiting:
        assert "cancelled before its first attempt" in hold.target.status(hold.target_handle).reason


def test_stopping_what_still_waits_in_the_queue_takes_it_out_at_once(lab: Lab) -> None:
    lab.server.full.add("us-east1")
    hold = lab.start(WAITS)
    outcome = hold.stop()
    assert (outcome.status.state, outcome.exit_code) == (State.STOPPED, 4)
    assert lab.server.live() == []


@pytest.mark.torch
def test_a_job_that_fails_before_the_supervisor_says_why_in_its_machines_own_words(lab: Lab) -> None:
    lab.server.restarts, lab.server.retries = 0, 0
    hold = lab.start(FakeBehaviour(), image=ready_image(), setup=("echo the module is gone >&2; exit 3",))
    followed = [line.text for line in hold.logs(follow=True)]
    assert any("Waiting for job to be provisioned" in text for text in followed)
    assert any("the module is gone" in text for text in followed)
    status = hold.target.status(hold.target_handle)
    assert status.state is State.FAILED
    assert "before the supervisor started; last output: " in status.reason
    assert "exited with a non-zero status" in status.reason
    assert any("the module is gone" in line for line in hold.target.evidence(hold.target_handle))  # type: ignore[attr-defined]


def test_what_cloud_logging_does_not_let_us_read_is_said_and_stops_nothing(lab: Lab) -> None:
    lab.server.log_forbidden = True
    hold = lab.start(FakeBehaviour(lines=("hello",)))
    followed = [line.text for line in hold.logs(follow=True)]
    assert sum("Cloud Logging cannot be read" in text for text in followed) == 1
    assert any("roles/logging.viewer" in text for text in followed)
    assert "hello" in followed
    assert hold.outcome().status.state is State.FINISHED


@pytest.mark.parametrize("state", vertex_lifecycle.STATE_TEXT)
def test_every_state_of_vertex_ai_is_understood(lab: Lab, state: str) -> None:
    lab.server.full.add("us-east1")
    hold = lab.start(WAITS)
    job = lab.server.jobs[hold.target_handle.details["job"]]
    job["state"] = state
    found = hold.target.status(hold.target_handle)
    stopped = {"JOB_STATE_CANCELLED", "JOB_STATE_EXPIRED"}
    failed = {"JOB_STATE_FAILED", "JOB_STATE_SUCCEEDED", "JOB_STATE_PARTIALLY_SUCCEEDED"}
    expected = State.STOPPED if state in stopped else State.FAILED if state in failed else State.PENDING
    assert found.state is expected, found
    assert vertex_lifecycle.STATE_TEXT[state] in found.reason
    job["state"] = "JOB_STATE_QUEUED"


def test_the_words_cover_googles_own_list_of_states() -> None:
    from tests.servers import vertex_messages

    states: Any = vertex_messages._types("job_state").JobState
    assert {state.name for state in states} == set(vertex_lifecycle.STATE_TEXT)


def test_a_state_that_a_later_vertex_invents_is_of_a_job_that_lives(lab: Lab) -> None:
    lab.server.full.add("us-east1")
    hold = lab.start(WAITS)
    job = lab.server.jobs[hold.target_handle.details["job"]]
    job["state"] = "JOB_STATE_DREAMING"
    status = hold.target.status(hold.target_handle)
    assert status.state is State.PENDING
    assert "dreaming" in status.reason
    job["state"] = "JOB_STATE_QUEUED"


def test_a_secret_named_at_launch_is_refused_before_anything_is_made(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "x")
    plan = lab.plan(FakeBehaviour())
    with pytest.raises(BadInput, match="gcloud secrets create wandb-api-key"):
        lifecycle.launch(plan, detach=True, target=lab.target(plan), secrets=["WANDB_API_KEY"])
    assert lab.server.jobs == {}


def test_limits_say_which_second_limit_stands_behind_the_budget(lab: Lab) -> None:
    resources = Resources(accelerator=Accelerator(kind="T4"), processes=1)
    plan = lab.plan(FakeBehaviour(), budget=Budget(hours=8), resources=resources)
    second = "Vertex AI's own timeout of 8.169 h, each submission"
    assert plan.limits == Limits(budget_s=28800.0, max_wait_s=None, grace_s=10.0, second=second)


def test_the_job_of_a_finished_run_is_left_to_succeed(lab: Lab) -> None:
    hold = lab.start(FakeBehaviour(lines=("hello",)))
    assert hold.wait().status.state is State.FINISHED
    assert lab.server.jobs[hold.target_handle.details["job"]]["state"] == "JOB_STATE_SUCCEEDED"
    assert not any(request.path.endswith(":cancel") for request in lab.server.requests)
    assert hold.folder.read_json("stop.json") is None, "nobody has asked it to stop"
