"""Submitting: what Vertex AI refuses and what to type, the next place where one has no room, answers that are lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import TargetError
from headway.core.types import Handle, State
from headway.launcher import lifecycle
from headway.spec import Accelerator, Image, Resources
from headway.storage.google import GoogleError, OutOfCapacity, Unreachable
from headway.targets.fake import FakeBehaviour
from headway.targets.vertex.client import Client
from headway.targets.vertex.lifecycle import live_jobs
from tests.contract.suite import WAITS
from tests.servers.loopback import Fault
from tests.servers.vertex_machines import Image as There
from tests.targets.vertex.jobs import IMAGE, ready_image
from tests.targets.vertex.lab import Lab

pytestmark = pytest.mark.slow
FALLBACK = [{"region": "us-central1"}, {"machine": "g2-standard-8", "region": "europe-west4"}]
T4 = Resources(accelerator=Accelerator(kind="T4"), machine="n1-standard-8", processes=1)


def refusal(lab: Lab, kind: type[TargetError] = GoogleError, **more: Any) -> str:
    with pytest.raises(kind) as error:
        lab.start(FakeBehaviour(), **more)
    assert lab.server.live() == []
    assert not [key for key in lab.cloud.stored() if "/code/" not in key], "no run is left behind"
    return str(error.value)


def place(lab: Lab, hold: lifecycle.RunHandle) -> tuple[str, str]:
    name = str(hold.target_handle.details["job"])
    machine = lab.server.jobs[name]["jobSpec"]["workerPoolSpecs"][0]["machineSpec"]["machineType"]
    return name.split("/")[3], machine


def test_no_quota_is_answered_with_where_to_ask_for_more(lab: Lab) -> None:
    lab.server.exhausted.add("us-east1")
    said = refusal(lab, OutOfCapacity)
    assert "CustomModelTrainingT4GPUsPerProjectPerRegion" in said
    assert "https://console.cloud.google.com/iam-admin/quotas?project=my-project" in said
    assert "fallback" in said


@pytest.mark.parametrize(("exhausted", "expected"), [
    ((), ("us-east1", "n1-standard-8")),
    (("us-east1",), ("us-central1", "n1-standard-8")),
    (("us-east1", "us-central1"), ("europe-west4", "g2-standard-8")),
])  # fmt: skip
def test_the_first_place_with_room_is_taken(lab: Lab, exhausted: tuple[str, ...], expected: tuple[str, str]) -> None:
    lab.server.exhausted.update(exhausted)
    lab.server.full.update(("us-east1", "us-central1", "europe-west4"))
    hold = lab.start(WAITS, resources=T4, options={"fallback": FALLBACK})
    assert place(lab, hold) == expected
    assert [found.url for found in hold.target.list_runs()] == [hold.url], "found in whichever region it is"
    bare = Handle(target="vertex", run=hold.run, url=hold.url)
    assert hold.target.status(bare).state is State.PENDING, "also by somebody who knows its folder alone"


def test_a_machine_that_a_region_does_not_have_is_looked_for_in_the_next(lab: Lab) -> None:
    lab.server.lacking.add(("us-east1", "n1-standard-8"))
    lab.server.full.add("us-central1")
    hold = lab.start(WAITS, resources=T4, options={"fallback": FALLBACK})
    assert place(lab, hold) == ("us-central1", "n1-standard-8")


def test_a_queue_that_does_not_move_is_left_for_the_next_place(lab: Lab) -> None:
    lab.server.full.update(("us-east1", "us-central1"))
    options = {"fallback": [{"region": "us-central1"}, {"region": "europe-west4"}], "switch_after": 0.3}
    hold = lab.start(FakeBehaviour(lines=("hello",)), options=options)
    assert place(lab, hold)[0] == "europe-west4"
    assert hold.wait().status.state is State.FINISHED
    assert lab.server.live() == [], "what waited elsewhere was cancelled"


def test_when_no_place_has_room_all_of_them_are_named(lab: Lab) -> None:
    lab.server.exhausted.update(("us-east1", "us-central1", "europe-west4"))
    said = refusal(lab, OutOfCapacity, resources=T4, options={"fallback": FALLBACK})
    for words in ("n1-standard-8 with T4:1 in us-east1", "in us-central1", "g2-standard-8 with L4:1 in europe-west4"):
        assert words in said


def test_an_image_that_is_not_there_is_answered_with_the_command_that_pushes_it(lab: Lab) -> None:
    image = Image(uri="us-docker.pkg.dev/my-project/headway/nowhere:v1")
    lab.server.images_forbidden = True  # so that Vertex AI itself is the first to say it
    said = refusal(lab, image=image)
    assert "does not exist" in said
    assert "headway image --push" in said


def test_a_missing_role_is_answered_with_the_command_that_grants_it(lab: Lab) -> None:
    plan = lab.plan(FakeBehaviour(), image=ready_image())
    lab.server.forbidden = "aiplatform.customJobs.create"
    with pytest.raises(GoogleError, match=r"roles/aiplatform\.user"):
        lab.target(plan).submit(plan, "r")
    lab.server.forbidden = "iam.serviceAccounts.actAs"
    with pytest.raises(GoogleError, match=r"roles/iam\.serviceAccountUser"):
        lab.target(plan).submit(plan, "r")
    lab.server.forbidden = ""


def test_credentials_that_google_does_not_know_are_answered_with_the_login(lab: Lab) -> None:
    plan = lab.plan(FakeBehaviour(), image=ready_image())
    lab.server.tokens = set()
    with pytest.raises(GoogleError, match="gcloud auth application-default login"):
        lab.target(plan).submit(plan, "r")
    lab.server.tokens = lab.cloud.gcs.tokens


def test_no_credentials_at_all_are_answered_with_the_login(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = lab.plan(FakeBehaviour(), image=ready_image())
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere.json")
    with pytest.raises(TargetError, match="gcloud auth application-default login"):
        lab.target(plan).submit(plan, "r")


@pytest.mark.parametrize("kind", ["drop", "lose"])
def test_a_job_whose_answer_was_lost_is_found_and_not_made_twice(lab: Lab, kind: Any) -> None:
    lab.server.full.add("us-east1")
    plan = lab.plan(WAITS, image=ready_image())
    lab.server.faults.append(Fault(kind=kind, method="POST", status=503))
    handle = lab.target(plan).submit(plan, "r")
    assert list(lab.server.jobs) == [handle.details["job"]]


def test_a_request_that_never_arrived_is_made_again(lab: Lab) -> None:
    lab.server.full.add("us-east1")
    plan = lab.plan(WAITS, image=ready_image())
    lab.server.faults.append(Fault(kind="refuse", method="POST", status=503))
    handle = lab.target(plan).submit(plan, "r")
    assert list(lab.server.jobs) == [handle.details["job"]]


def test_a_silent_vertex_leaves_what_the_folder_says(lab: Lab) -> None:
    hold = lab.prints(lab.start(WAITS))
    target = hold.target
    silent = Fault(kind="refuse", status=503, times=10**6)
    lab.server.faults.append(silent)
    client: Client = target._client()  # type: ignore[attr-defined]
    client.retry = type(client.retry)(tries=1)
    status = target.status(hold.target_handle)
    assert status.state is State.RUNNING
    assert "Google answers 503" in status.reason
    with pytest.raises(Unreachable):
        target.down(hold.target_handle)
    silent.times = 0
    assert hold.stop().status.state is State.STOPPED


def test_long_lists_are_read_to_their_end(lab: Lab) -> None:
    lab.server.full.add("us-east1")
    lab.server.page = 2
    plan = lab.plan(WAITS, image=ready_image())
    target = lab.target(plan)
    for number in range(5):
        target.submit(plan, f"r{number}")
    assert [handle.run for handle in target.list_runs()] == [f"r{number}" for number in range(5)]
    assert len(live_jobs(Client("my-project"), ["us-east1", "us-central1"])) == 5


@pytest.mark.parametrize("moment", ["before", "created", "recorded"])
def test_a_launcher_killed_at_any_moment_leaves_nothing_or_a_job_that_can_be_taken_down(
    lab: Lab, tmp_path: Path, moment: str
) -> None:
    lab.server.images[IMAGE] = There()
    lab.server.full.add("us-east1")
    plan = lab.plan(WAITS, image=ready_image())
    (tmp_path / "plan.json").write_text(plan.to_json())
    words = [sys.executable, "-c", KILLED_CLIENT, str(tmp_path / "plan.json"), moment]
    client = subprocess.run(words, capture_output=True, text=True, check=False)
    assert client.returncode == -9, client.stderr
    url, target = "gs://bucket/runs/orphan", lab.target(plan)
    there = moment != "before"
    assert [found.url for found in target.list_runs()] == ([url] if there else [])
    status = target.status(Handle(target="vertex", run="orphan", url=url))
    assert status.state is (State.PENDING if there else State.LOST)
    assert lifecycle.open_run(url, target=target).down().left == ()
    assert target.list_runs() == []


KILLED_CLIENT = """
import os, signal, sys
from pathlib import Path
from headway.launcher import lifecycle as launcher; from headway.rundir import submission as intent
from headway.planning import Plan
from headway.targets.vertex import lifecycle as starting

def die(*args, **more):
    os.kill(os.getpid(), signal.SIGKILL)

made = starting.create

def made_and_gone(*args, **more):
    made(*args, **more)
    die()

moment = sys.argv[2]
if moment == "before":
    starting.create = die
elif moment == "created":
    starting.create = made_and_gone
else:
    intent.save_handle_details = die
launcher.launch(Plan.from_json(Path(sys.argv[1]).read_text()), name="orphan", detach=True)
"""
