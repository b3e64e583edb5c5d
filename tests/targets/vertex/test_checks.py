"""What would stop a job on Vertex AI is said before anything is spent, all of it at once, with what to type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import BadJob
from headway.planning import plan
from headway.spec import Accelerator, Data, Export, Image, Job, Mount, Resources, Secret, Source, TargetEntry
from tests.targets.vertex.jobs import entry, job

NETWORK = "projects/123/global/networks/default"


def refused(folder: Path, **keys: Any) -> str:
    with pytest.raises(BadJob) as error:
        plan(job(folder, **keys), on="vertex")
    return str(error.value)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"outputs": "/data/runs"}, "outputs: gs://YOUR-BUCKET/runs"),
        ({"outputs": "s3://bucket/runs"}, "keys of Cloud Storage alone"),
        ({"export": Export(to="models/leaves")}, "to: gs://YOUR-BUCKET/leaves"),
        ({"init_from": "runs/earlier"}, "init_from"),
        ({"secrets": {"KEY": Secret(ref="k8s://wandb/key")}}, "gcloud secrets create key --project=my-project"),
        ({"mounts": (Mount(pvc="claim", at="/data"),)}, "at: /mnt/nfs/data"),
        ({"options": {"network": NETWORK}, "mounts": (Mount(nfs="10.0.0.1:/x", at="/data"),)}, "at: /mnt/nfs/data"),
        ({"mounts": (Mount(nfs="10.0.0.1:/x", at="/mnt/nfs/x"),)}, "network: projects/PROJECT-NUMBER/global"),
        ({"mounts": (Mount(nfs="10.0.0.1:/x", at="/mnt/nfs/x", read_only=True),)}, "remove read_only"),
        ({"resources": Resources(accelerator=Accelerator(kind="T4", count=3))}, "T4:1 (it takes 1 or 2 or 4)"),
        ({"resources": Resources(machine="n1-standard-4", cpus=8)}, "n1-standard-4 has less than cpus: 8"),
        ({"resources": Resources(machine="n1-standard-4", memory=60_000_000_000)}, "less than memory: 60GB"),
        ({"options": {"mode": "container"}}, "us-east1-docker.pkg.dev/my-project/headway/leaves"),
        ({"image": Image(repository="us-docker.pkg.dev/my-project/r/x")}, "none is built"),
        ({"options": {"project": None}}, "gcloud projects list"),
        ({"options": {"project": "My Project"}}, "write project: my-project"),
        ({"options": {"region": "useast"}}, "write region: us-central1"),
        ({"options": {"network": "default"}}, "write network: projects/PROJECT-NUMBER/global/networks/default"),
        ({"options": {"tensorboard": "mine", "service_account": "a@b"}}, "tensorboards/123"),
        ({"options": {"tensorboard": "projects/p/locations/r/tensorboards/1"}}, "needs a service_account"),
        ({"options": {"service_account": "gcs-access"}}, "trainer@my-project.iam.gserviceaccount.com"),
        ({"options": {"kms_key": "k"}}, "cryptoKeys/KEY"),
        ({"options": {"labels": {"Team": "vision"}}}, "characters other than"),
        ({"options": {"labels": {"headway_run": "x"}}}, "reserved for Headway"),
        ({"options": {"timeout": 60.0}}, "timeout: 1h"),
        ({"options": {"strategy": "flex-start"}, "resources": Resources(spot=True)}, "cannot be combined"),
        ({"options": {"fallback": [{"machine": "g2-standard-8", "accelerator": {"kind": "T4", "count": 1}}]}}, "L4:1"),
    ],
)
def test_what_vertex_would_refuse_is_refused_now(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert said in refused(tmp_path, **keys)


def test_data_of_this_machine_is_refused_with_the_command_that_uploads_it(tmp_path: Path) -> None:
    (tmp_path / "leaves").mkdir()
    data = Data(train=(Source(source=str(tmp_path / "leaves")),))
    said = refused(tmp_path, data=data)
    assert f"gcloud storage cp -r {tmp_path}/leaves gs://YOUR-BUCKET/data/" in said


def test_a_value_of_this_shell_cannot_be_a_secret_there_and_the_command_that_stores_it_is_printed(
    tmp_path: Path,
) -> None:
    said = refused(tmp_path, secrets={"WANDB_API_KEY": Secret(ref="env:WANDB"), "TOKEN": Secret(ref="file:/k/token")})
    store = "gcloud secrets create wandb-api-key --project=my-project --data-file=-"
    assert f'printf %s "$WANDB" | {store}; then secrets: {{WANDB_API_KEY: gcp-sm://wandb-api-key}}' in said
    assert "gcloud secrets create token --project=my-project --data-file=/k/token" in said


@pytest.mark.parametrize(
    ("line", "fits"),
    [("torch==2.4.1", True), ("torch>=2.0", True), ("torch", True), ("torch==2.13.0", False), ("torch>=2.6", False),
     ("torchmetrics>=9.9", True)],
)  # fmt: skip
def test_a_torch_that_the_image_does_not_have_is_found_in_the_requirements(
    line: str, fits: bool, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text(f"pillow\n{line}\n")
    wanted = job(tmp_path, requirements="requirements.txt")
    if fits:
        assert plan(wanted, on="vertex")
    else:
        with pytest.raises(BadJob, match=r"requirements.txt:2: .*never replaces the image's torch"):
            plan(wanted, on="vertex")


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    said = refused(
        tmp_path,
        outputs="runs",
        secrets={"KEY": Secret(ref="env:KEY")},
        options={"region": "x", "labels": {"A": "b"}},
        resources=Resources(machine="n1-standard-1"),
    )
    assert len(said.split("fix:")) == 6


def test_the_kind_alone_says_which_entry_to_write() -> None:
    with pytest.raises(BadJob, match="kind: vertex, project: YOUR-PROJECT"):
        plan(Job(name="j", recipe="captioning", outputs="gs://b/runs"), on="vertex")


def test_a_job_file_may_say_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    (tmp_path / "headway.yaml").write_text(
        "name: j\nscript: x.py\noutputs: gs://b/runs\ntargets:\n  v:\n    kind: vertex\n    project: my-project\n"
        "    region: us-east1\n    mode: package\n    strategy: flex-start\n    switch_after: 20m\n    timeout: 2d\n"
        "    fallback: [{region: us-central1}, {machine: g2-standard-8, accelerator: L4:1, spot: false}]\n"
        f"    network: {NETWORK}\n    service_account: a@b\n    labels: {{team: vision, year: 2026}}\n"
    )
    loaded = Job.load(tmp_path / "headway.yaml")
    options = loaded.targets["v"].options
    assert (options["switch_after"], options["timeout"]) == (1200.0, 172800.0)
    assert options["labels"] == {"team": "vision", "year": "2026"}
    assert [request.name for request in plan(loaded, on="v").requests].count("custom-job-3.json") == 1


def test_other_verbs_do_not_pay_for_google(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "from headway.targets import build; t = build('vertex', {'project': 'my-project'}); import sys;"
        "heavy = {'google.auth', 'google.protobuf', 'requests', 'obstore', 'yaml', 'torch'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_notes_say_what_a_reader_should_know(tmp_path: Path) -> None:
    made = plan(
        job(
            tmp_path,
            max_wait=3600.0,
            options={"fallback": [{"region": "us-central1"}]},
            secrets={"KEY": Secret(ref="gcp-sm://key")},
        ),
        on="vertex",
    )
    said = "\n".join(made.notes)
    for words in ("n1-standard-8 with T4:1 in us-east1", "in turn: n1-standard-8 with T4:1 in us-central1",
                  "only with strategy: flex-start", "switch_after", "roles/secretmanager.secretAccessor"):  # fmt: skip
        assert words in said


def test_an_entry_without_options_is_the_default_one() -> None:
    assert entry()["vertex"] == TargetEntry(kind="vertex", options={"project": "my-project", "region": "us-east1"})
