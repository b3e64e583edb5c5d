"""`headway plan --render` writes a file that `gcloud ai custom-jobs create --config` accepts and sends as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from headway import cli
from tests.servers.gcs import TOKEN
from tests.servers.vertex_machines import Image
from tests.targets.vertex.cloud import Cloud

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")]
JOB = """
name: leaves
script: train.py
outputs: gs://bucket/runs
resources: {accelerator: T4:1, machine: n1-standard-8, nodes: 2, spot: true, disk: 150GB}
budget: {usd: 5, hours: 8}
secrets: {WANDB_API_KEY: gcp-sm://wandb-key}
mounts: [{nfs: "10.0.0.1:/export", at: /mnt/nfs/data}]
targets:
  vertex:
    kind: vertex
    project: my-project
    region: us-east1
    mode: package
    network: projects/123/global/networks/default
    service_account: trainer@my-project.iam.gserviceaccount.com
    labels: {team: vision}
"""


def test_gcloud_accepts_what_is_rendered_and_sends_the_same(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("")
    (project / "headway.yaml").write_text(JOB)
    monkeypatch.chdir(project)
    assert cli.main(["plan", "--on", "vertex", "--render", "out"]) == 0
    cloud.vertex.full.add("us-east1")
    cloud.vertex.images["us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-4.py310:latest"] = Image()
    (tmp_path / "token").write_text(TOKEN)
    spec = (project / "out" / "job-spec.yaml").read_text()
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(tmp_path / "token"),
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM": f"{cloud.vertex.url}/",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
    }
    words = ["gcloud", "ai", "custom-jobs", "create", "--project=my-project", "--region=us-east1"]
    words += ["--display-name=leaves-1", "--labels=headway_run=leaves-1,team=vision", "--config=out/job-spec.yaml"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (job,) = cloud.vertex.jobs.values()
    ours = cloud.vertex.parsed_spec(spec)
    assert job["jobSpec"] == ours
    listed = subprocess.run(
        ["gcloud", "ai", "custom-jobs", "list", "--project=my-project", "--region=us-east1",
         "--filter=labels.headway_run=leaves-1", "--format=value(name)"],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert listed.stdout.strip() == job["name"], listed.stderr
