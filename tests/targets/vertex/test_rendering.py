"""The custom job that a plan becomes: read by Google's own message types, complete, and the same every time."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway import cli
from headway.packaging.build import read_push_record
from headway.planning import plan
from headway.spec import Accelerator, Budget, Image, Job, Mount, Resources, Secret
from headway.storage.secrets import parse
from headway.targets.vertex.render import folder_label
from tests.servers import vertex_messages, vertex_rules
from tests.targets.vertex.jobs import IMAGE, job, planned, ready_image, request

REPOSITORY = "us-docker.pkg.dev/my-project/headway/leaves"


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


def body(folder: Path, **keys: Any) -> dict[str, Any]:
    """The request's body, once Google's types and the API's rules have taken it."""
    sent: dict[str, Any] = dict(request(planned(folder / "project", **keys))["body"])
    text = json.dumps(sent).replace("{RUN}", "leaves-1").replace("{EXPIRES}", "1").replace("{START}", "abc")
    text = text.replace("{OWNER}", "a1b2").replace("{OWNER_NAME}", "alice-host-7")
    named: dict[str, Any] = json.loads(text)
    assert not list(vertex_rules.faults(vertex_messages.parsed(named)))
    return named


def variables(pool: dict[str, Any]) -> dict[str, str]:
    program = pool.get("containerSpec") or pool["pythonPackageSpec"]
    return {pair["name"]: pair["value"] for pair in program["env"]}


def test_a_package_runs_in_googles_image_with_headways_wheel_beside_it(tmp_path: Path) -> None:
    made = planned(tmp_path / "project")
    (pool,) = body(tmp_path)["jobSpec"]["workerPoolSpecs"]
    spec = pool["pythonPackageSpec"]
    assert spec["executorImageUri"].endswith("pytorch-gpu.2-4.py310:latest")
    wheel, sdist = spec["packageUris"]
    assert wheel == f"gs://bucket/runs/code/{made.code.wheel}"
    assert sdist == request(made, "package.json")["to"]
    assert spec["pythonModule"] == "headway_job.task"


def test_an_image_of_headways_is_started_as_the_supervisor(tmp_path: Path) -> None:
    made = body(tmp_path, options={"mode": "container"}, image=Image(repository=REPOSITORY))
    (pool,) = made["jobSpec"]["workerPoolSpecs"]
    spec = pool["containerSpec"]
    assert spec["imageUri"].startswith(f"{REPOSITORY}:")
    assert spec["command"] == ["python3", "-m", "headway.runtime.worker"]
    assert spec["args"] == ["--run", "gs://bucket/runs/leaves-1"]
    assert variables(pool)["HEADWAY_CODE_DIR"] == "/headway/code"


def test_a_ready_image_is_brought_headway_and_the_code(tmp_path: Path) -> None:
    (pool,) = body(tmp_path, options={"mode": "container"}, image=ready_image())["jobSpec"]["workerPoolSpecs"]
    assert pool["containerSpec"]["imageUri"] == IMAGE
    assert pool["containerSpec"]["command"][:2] == ["python3", "-c"]
    assert json.loads(variables(pool)["HEADWAY_BOOT"])["wheel"].endswith(".whl")


def test_an_image_that_was_not_pushed_yet_is_built_and_pushed_first(tmp_path: Path) -> None:
    wanted = job(tmp_path / "project", options={"mode": "container"}, image=Image(repository=REPOSITORY))
    made = plan(wanted, on="vertex")
    names = [each.name for each in made.requests]
    assert names == ["Dockerfile", "image.json", "custom-job.json", "job-spec.yaml"]
    from headway.packaging.dockerfile import image_of_plan

    assert read_push_record(image_of_plan(made)) is None


def test_the_primary_pool_has_one_machine_and_the_others_are_in_the_second(tmp_path: Path) -> None:
    resources = Resources(accelerator=Accelerator(kind="T4", count=2), machine="n1-standard-16", nodes=4)
    first, second = body(tmp_path, resources=resources)["jobSpec"]["workerPoolSpecs"]
    assert (first["replicaCount"], second["replicaCount"]) == (1, 3)
    machine = {"machineType": "n1-standard-16", "acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 2}
    assert first["machineSpec"] == second["machineSpec"] == machine


@pytest.mark.parametrize(
    ("keys", "timeout"),
    [({}, "87030s"), ({"budget": Budget(hours=8)}, "29430s"), ({"options": {"timeout": 7200.0}}, "7200s")],
)
def test_a_timeout_is_always_set(keys: dict[str, Any], timeout: str, tmp_path: Path) -> None:
    assert body(tmp_path, **keys)["jobSpec"]["scheduling"]["timeout"] == timeout


def test_a_budget_in_dollars_is_a_timeout_too(tmp_path: Path) -> None:
    made = planned(tmp_path / "project", budget=Budget(usd=4.0))
    assert made.limits.budget_s is not None
    seconds = request(made)["body"]["jobSpec"]["scheduling"]["timeout"]
    assert made.limits.budget_s < float(seconds.removesuffix("s")) < made.limits.budget_s + 1000
    assert "Vertex AI's own timeout" in made.limits.second


def test_spot_and_flex_start_are_strategies_with_retries_on(tmp_path: Path) -> None:
    spot = body(tmp_path, resources=Resources(spot=True))["jobSpec"]["scheduling"]
    assert (spot["strategy"], spot["disableRetries"], spot["restartJobOnWorkerRestart"]) == ("SPOT", False, False)
    options = {"strategy": "flex-start"}
    flexible = body(tmp_path, options=options, max_wait=3600.0)["jobSpec"]["scheduling"]
    assert (flexible["strategy"], flexible["maxWaitDuration"]) == ("FLEX_START", "3600s")
    assert "maxWaitDuration" not in body(tmp_path, max_wait=3600.0)["jobSpec"]["scheduling"]


def test_network_account_tensorboard_key_shell_disk_and_shares_are_passed_on(tmp_path: Path) -> None:
    said = {
        "network": "projects/123/global/networks/default",
        "service_account": "trainer@my-project.iam.gserviceaccount.com",
        "tensorboard": "projects/my-project/locations/us-east1/tensorboards/9",
        "kms_key": "projects/p/locations/us-east1/keyRings/r/cryptoKeys/k",
        "web_access": True,
        "disk_type": "pd-standard",
        "labels": {"team": "vision"},
    }
    made = body(
        tmp_path,
        options=said,
        mounts=(Mount(nfs="10.0.0.1:/export/leaves", at="/mnt/nfs/leaves"),),
        resources=Resources(disk=250_000_000_000),
    )
    spec = made["jobSpec"]
    assert (spec["network"], spec["serviceAccount"]) == (said["network"], said["service_account"])
    assert (spec["tensorboard"], spec["enableWebAccess"]) == (said["tensorboard"], True)
    assert made["encryptionSpec"] == {"kmsKeyName": said["kms_key"]}
    assert made["labels"]["team"] == "vision"
    (pool,) = spec["workerPoolSpecs"]
    assert pool["diskSpec"] == {"bootDiskType": "pd-standard", "bootDiskSizeGb": 250}
    assert pool["nfsMounts"] == [{"server": "10.0.0.1", "path": "/export/leaves", "mountPoint": "leaves"}]


def test_labels_find_the_run_whatever_it_is_called(tmp_path: Path) -> None:
    labels = body(tmp_path)["labels"]
    assert labels["headway_run"] == "leaves-1"
    assert labels["headway_folder"] == folder_label("gs://bucket/runs/leaves-1")
    assert len(folder_label("gs://bucket/" + "x" * 200 + "/" + "n" * 50)) <= 63
    assert folder_label("gs://a/runs/r") != folder_label("gs://b/runs/r")


def test_the_machines_are_told_which_project_is_ours_and_no_secret(tmp_path: Path) -> None:
    made = body(
        tmp_path, secrets={"WANDB_API_KEY": Secret(ref="gcp-sm://wandb-key")}, env={"PIP_INDEX_URL": "https://x"}
    )
    (pool,) = made["jobSpec"]["workerPoolSpecs"]
    told = variables(pool)
    assert told["GOOGLE_CLOUD_PROJECT"] == "my-project"
    assert told["PIP_INDEX_URL"] == "https://x", "pip runs before the supervisor does"
    assert "wandb" not in json.dumps(made).lower()
    assert parse("gcp-sm://wandb-key").kind == "gcp-sm"


def test_each_fallback_is_a_request_of_its_own_in_order(tmp_path: Path) -> None:
    fallback = [
        {"region": "us-central1"},
        {"machine": "g2-standard-8", "spot": False},
        {"accelerator": {"kind": "A100", "count": 1}, "region": "europe-west4"},
    ]
    made = planned(
        tmp_path / "project",
        options={"fallback": fallback},
        resources=Resources(accelerator=Accelerator(kind="T4"), machine="n1-standard-8", spot=True),
    )
    found = [
        (each.body["url"].split("/")[2].partition("-aiplatform")[0], _shape(each.body["body"]))
        for each in made.requests
        if each.name.startswith("custom-job")
    ]
    assert found == [
        ("us-east1", ("n1-standard-8", "NVIDIA_TESLA_T4", "SPOT")),
        ("us-central1", ("n1-standard-8", "NVIDIA_TESLA_T4", "SPOT")),
        ("us-east1", ("g2-standard-8", "NVIDIA_L4", "STANDARD")),
        ("europe-west4", ("a2-highgpu-1g", "NVIDIA_TESLA_A100", "SPOT")),
    ]


def _shape(made: dict[str, Any]) -> tuple[str, str, str]:
    spec = made["jobSpec"]
    machine = spec["workerPoolSpecs"][0]["machineSpec"]
    return machine["machineType"], machine["acceleratorType"], spec["scheduling"]["strategy"]


def test_the_spec_for_gcloud_is_the_same_as_what_is_sent(tmp_path: Path) -> None:
    made = planned(tmp_path / "project")
    text = request(made, "job-spec.yaml")["text"]
    assert yaml.safe_load(text) == request(made)["body"]["jobSpec"]
    assert "gcloud ai custom-jobs create --project=my-project --region=us-east1" in text


JOB = """name: leaves
script: train.py
outputs: gs://bucket/runs
targets: {vertex: {kind: vertex, project: my-project, mode: package, labels: {team: vision}}}
"""


def test_the_rendered_spec_names_the_next_run_and_can_be_given_to_gcloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("")
    (tmp_path / "project" / "headway.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path / "project")
    assert cli.main(["plan", "--on", "vertex", "--render", "../out"]) == 0
    text = (tmp_path / "out" / "job-spec.yaml").read_text()
    assert not re.search(r"\{[A-Z_]+\}", text)
    made = plan(Job.load("headway.yaml"), on="vertex")
    name = f"leaves-{made.name_hash}-1"
    assert f"--display-name={name} --labels=team=vision,headway_run={name}" in text
    spec = yaml.safe_load(text)
    assert spec["baseOutputDirectory"] == {"outputUriPrefix": f"gs://bucket/runs/{name}/vertex"}
    assert set(spec) <= {"workerPoolSpecs", "scheduling", "baseOutputDirectory", "serviceAccount", "network"}
    vertex_messages.parsed({"displayName": name, "jobSpec": spec})  # Google's own types refuse unknown keys


def test_the_same_job_gives_the_same_plan(tmp_path: Path) -> None:
    assert planned(tmp_path / "project").to_json() == planned(tmp_path / "project").to_json()


def test_threads_are_those_of_the_machine_there(tmp_path: Path) -> None:
    assert planned(tmp_path / "project").environment["threads"] == "8"
    resources = Resources(accelerator=Accelerator(kind="T4", count=4), machine="n1-standard-32")
    assert planned(tmp_path / "project", resources=resources).environment["threads"] == "8"


def test_a_budget_in_dollars_holds_in_the_dearest_place_that_a_run_may_go_to(tmp_path: Path) -> None:
    spot = Resources(accelerator=Accelerator(kind="T4"), machine="n1-standard-8", spot=True)
    cheap = planned(tmp_path / "project", budget=Budget(usd=5.0), resources=spot)
    fallback = [{"region": "us-central1"}, {"spot": False}]
    safe = planned(tmp_path / "project", budget=Budget(usd=5.0), resources=spot, options={"fallback": fallback})
    dear = planned(tmp_path / "project", budget=Budget(usd=5.0), resources=Resources(
        accelerator=Accelerator(kind="T4"), machine="n1-standard-8"))  # fmt: skip
    assert safe.limits.budget_s == dear.limits.budget_s
    assert cheap.limits.budget_s is not None
    assert dear.limits.budget_s is not None
    assert dear.limits.budget_s < cheap.limits.budget_s
    assert any("computed with the most expensive placement" in note and "n1-standard-8 with T4:1 in us-east1" in note
               for note in safe.notes)  # fmt: skip
    assert not any("no price is known" in note for note in safe.notes)


def test_a_place_without_a_known_price_is_named_beside_a_budget_in_dollars(tmp_path: Path) -> None:
    fallback = [{"region": "us-central1"}, {"machine": "z9-standard-8"}]
    unsure = planned(
        tmp_path / "project",
        budget=Budget(usd=5.0),
        resources=Resources(machine="n1-standard-8"),
        options={"fallback": fallback},
    )
    (note,) = (note for note in unsure.notes if "no price is known" in note)
    assert note.startswith("no price is known for z9-standard-8")
