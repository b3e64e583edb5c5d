"""`headway doctor --on vertex` and `plan --online`: what Google itself says, before anything is spent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway import cli
from headway.core.errors import BadJob
from headway.spec import Image, Notify
from headway.targets.fake import FakeBehaviour
from tests.contract.suite import WAITS
from tests.servers.vertex_machines import Image as There
from tests.targets.vertex.jobs import ready_image
from tests.targets.vertex.lab import Lab

JOB = """
name: leaves
script: play.py
outputs: gs://bucket/runs
targets: {vertex: {kind: vertex, project: my-project, region: us-east1, mode: package}}
"""


def doctor(lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    (lab.project / "headway.yaml").write_text(JOB)
    monkeypatch.chdir(lab.project)
    code = cli.main(["doctor", "--on", "vertex", "--json"])
    said = json.loads(capsys.readouterr().out)
    return code, "\n".join(f"{each['mark']} {each['what']} {each['fix']}" for each in said)


def test_a_project_that_works_is_said_to(
    lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.server.full.add("us-east1")
    lab.start(WAITS, image=ready_image())
    code, said = doctor(lab, capsys, monkeypatch)
    assert code == 0, said
    assert "ok Vertex AI answers for my-project in us-east1; 1 live runs there" in said
    assert "ok Cloud Logging can be read" in said
    assert "gs://bucket --member=serviceAccount:service-PROJECT-NUMBER@" in said


def test_what_is_missing_is_said_with_the_command(
    lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.server.forbidden, lab.server.log_forbidden = "aiplatform.customJobs.list", True
    code, said = doctor(lab, capsys, monkeypatch)
    lab.server.forbidden = ""
    assert code == 2
    assert "bad us-east1: " in said
    assert "--role=roles/aiplatform.user" in said
    assert "--role=roles/logging.viewer" in said


def test_a_launch_that_google_would_refuse_claims_no_name(lab: Lab) -> None:
    lab.server.forbidden = "aiplatform.customJobs.list"
    with pytest.raises(BadJob, match=r"roles/aiplatform\.user"):
        lab.start(FakeBehaviour(), image=ready_image())
    lab.server.forbidden = ""
    assert not [name for name in lab.cloud.stored() if "plan.json" in name]


@pytest.mark.parametrize("name", ["nowhere:v1", f"play@sha256:{'0' * 64}", "a/b:v1"])
def test_an_image_that_the_registry_has_not_is_said_before_anything_is_launched(
    lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    uri = f"us-docker.pkg.dev/my-project/headway/{name}"
    (lab.project / "headway.yaml").write_text(JOB.replace(", mode: package", "") + f"image: {{uri: '{uri}'}}\n")
    monkeypatch.chdir(lab.project)
    words = ["plan", "--on", "vertex", "--online"]
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert f"there is no image {uri}" in said
    assert "gcloud artifacts docker images list us-docker.pkg.dev/my-project/headway --include-tags" in said
    lab.server.images[uri] = There()
    assert cli.main(words) == 0
    assert "the target would accept it" in capsys.readouterr().out


def test_a_registry_that_may_not_be_read_keeps_nobody_from_launching(lab: Lab) -> None:
    lab.server.images_forbidden = True
    plan = lab.plan(FakeBehaviour(), image=Image(uri="us-docker.pkg.dev/my-project/headway/nowhere:v1"))
    assert lab.target(plan).online(plan) == []


def test_links_lead_to_the_console_and_to_the_logs(lab: Lab, tmp_path: Path) -> None:
    from headway.cli.render import links

    lab.server.full.add("us-east1")
    hold = lab.start(WAITS, image=ready_image())
    found = links(hold)
    number = str(hold.target_handle.details["job"]).rpartition("/")[2]
    where = f"https://console.cloud.google.com/vertex-ai/locations/us-east1/training/{number}?project=my-project"
    assert found["console"] == where
    assert f"job_id%3D%22{number}%22" in found["logs"]


def test_a_webhook_of_this_shell_is_refused_with_the_command_that_stores_it(lab: Lab) -> None:
    with pytest.raises(BadJob, match=r"then notify: \{webhook: gcp-sm://webhook\}"):
        lab.plan(FakeBehaviour(), notify=Notify(webhook="env:SLACK_URL"))
