"""The Terraform module: formatted, valid for the provider, evaluated, and no more generous than it must be."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from headway.core.errors import BadInput
from headway.tools.terraform_gcp import MODULE, VALUES, InfraSpec, module_files, write_module
from tests.cli.conftest import Headway
from tests.cli.conftest import headway as headway
from tests.tools.hcl import Block, parse
from tests.tools.provider import META, camel, structs, wheel

FULL = InfraSpec(
    project="my-project", zone="us-east1-c", secrets=("wandb-key", "9lives"), billing_account="0A1B2C-3D4E5F-6A7B8C",
    workbench=True, spot=True,
)  # fmt: skip
PLAIN = InfraSpec(project="my-project", cluster=False)
JOB = """
name: night
recipe: captioning
outputs: gs://my-bucket/runs
resources: {accelerator: L4:2, nodes: 4, spot: true}
secrets: {WANDB_API_KEY: gcp-sm://wandb-key, OTHER: env:HOME}
targets:
  gke: {kind: kubernetes, project: my-project, location: us-east1-c, namespace: theirs}
"""
needs_terraform = pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not installed")
needs_schema = pytest.mark.skipif(
    wheel() is None, reason="pip download --no-deps -d .cache cdktf-cdktf-provider-google brings the schema"
)


def text() -> str:
    return "\n".join(module_files(PLAIN)[name] for name in MODULE)


def blocks(kind: str) -> dict[str, Block]:
    return {".".join(block.labels): block for block in parse(text()).blocks if block.kind == kind}


def resources() -> dict[str, Block]:
    return blocks("resource")


@needs_terraform
def test_it_is_formatted_as_terraform_formats(tmp_path: Path) -> None:
    write_module(FULL, tmp_path)
    done = subprocess.run(
        ["terraform", "fmt", "-check", "-diff"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_values_are_those_of_declared_variables_and_every_variable_is_used() -> None:
    declared = set(blocks("variable"))
    assert set(json.loads(module_files(FULL)[VALUES])) == declared - {"keep_days"}
    assert set(re.findall(r"\bvar\.(\w+)", text())) == declared


def test_every_reference_is_to_something_that_exists() -> None:
    made = {*resources(), *(f"data.{name}" for name in blocks("data"))}
    referenced = set(re.findall(r"(?<![\w\"])((?:data\.)?google_\w+\.\w+)", text()))
    assert len(referenced) >= 8
    assert referenced <= made


@needs_terraform
@pytest.mark.parametrize("wanted", [FULL, PLAIN], ids=["full", "plain"])
def test_terraform_evaluates_the_variables_and_outputs(wanted: InfraSpec, tmp_path: Path) -> None:
    write_module(wanted, tmp_path)
    # The provider cannot be had here: what it would make is a literal, and everything else is evaluated.
    made = {"google_storage_bucket.runs.name": '"bucket"', "google_service_account.trainer.email": '"trainer@x"'}
    main = (tmp_path / "main.tf").read_text()
    local = next(part for part in main.split("\n\n") if part.startswith("locals {"))
    outputs = (tmp_path / "outputs.tf").read_text()
    for name, literal in made.items():
        local, outputs = local.replace(name, literal), outputs.replace(name, literal)
    (tmp_path / "main.tf").write_text(local + '\noutput "apis" {\n  value = local.apis\n}\n')
    (tmp_path / "outputs.tf").write_text(outputs)
    for words in (["init", "-input=false"], ["apply", "-auto-approve", "-input=false"]):
        done = subprocess.run(["terraform", *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    shown = subprocess.run(["terraform", "output", "-json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    found = {name: each["value"] for name, each in json.loads(shown.stdout).items()}
    job = yaml.safe_load(found["job_file"])
    region = "us-east1" if wanted is FULL else "us-central1"
    assert job["outputs"] == "gs://bucket/runs"
    assert job["image"] == {"repository": f"{region}-docker.pkg.dev/my-project/headway/train"}
    assert job["targets"]["vertex"]["region"] == region
    assert ("gke" in job["targets"]) == wanted.cluster
    assert ("container" in found["apis"]) == wanted.cluster
    assert ("notebooks" in found["apis"]) == wanted.workbench
    assert "kubectl create serviceaccount headway -n default" in found["kubectl"]


@needs_schema
def test_every_block_and_attribute_is_one_of_the_providers() -> None:
    checked = 0
    for block in resources().values():
        kind = block.labels[0]
        name = camel(kind.removeprefix("google_"))
        checked += _check(block, f"{name}Config", name, structs(kind))
    assert checked > 40


def _check(block: Block, struct: str, prefix: str, known: dict[str, tuple[frozenset[str], frozenset[str]]]) -> int:
    allowed, required = known[struct]
    given = {*block.attributes, *(inner.kind if inner.kind != "dynamic" else inner.labels[0] for inner in block.blocks)}
    assert given <= allowed | META, (struct, given - allowed - META)
    assert required <= given, (struct, required - given)
    count = len(given)
    for inner in block.blocks:
        name, body = (inner.labels[0], inner.blocks[0]) if inner.kind == "dynamic" else (inner.kind, inner)
        deeper = f"{prefix}{camel(name)}"
        if deeper in known:
            count += _check(body, deeper, deeper, known)
        else:  # an empty block
            assert not body.attributes, deeper
    return count


def test_nobody_is_given_a_role_over_the_whole_project_but_to_write_logs_and_metrics() -> None:
    for name, block in resources().items():
        role = block.attributes.get("role", "")
        assert not re.search(r"owner|editor|admin", role), name
        if name.startswith("google_project_iam_member"):
            roles = role if role != "each.value" else block.attributes["for_each"]
            assert set(re.findall(r"roles/(\w+)\.", roles)) <= {"logging", "monitoring"}


def test_the_bucket_is_versioned_private_and_forgets_what_is_old() -> None:
    bucket = resources()["google_storage_bucket.runs"]
    assert bucket.attributes["uniform_bucket_level_access"] == "true"
    assert bucket.attributes["public_access_prevention"] == '"enforced"'
    kinds = [inner.kind for inner in bucket.blocks]
    assert kinds.count("lifecycle_rule") == 3
    assert "versioning" in kinds
    assert bucket.attributes["location"] == "upper(local.region)"


def test_gpu_machines_come_and_go_and_pods_are_who_they_are_meant_to_be() -> None:
    made = resources()
    pool = made["google_container_node_pool.gpu"]
    scaling = next(inner for inner in pool.blocks if inner.kind == "autoscaling")
    assert scaling.attributes["min_node_count"] == "0"
    node = next(inner for inner in pool.blocks if inner.kind == "node_config")
    assert node.attributes["disk_size_gb"] == "100"
    assert node.attributes["spot"] == "var.spot"
    assert any(inner.attributes.get("mode") == '"GKE_METADATA"' for inner in node.blocks)
    binding = made["google_service_account_iam_member.pods_are_the_trainer"]
    assert binding.attributes["member"] == '"serviceAccount:${var.project}.svc.id.goog[${var.namespace}/${var.name}]"'


def test_no_secrets_value_is_in_it() -> None:
    assert "google_secret_manager_secret_version" not in text()
    assert resources()["google_secret_manager_secret.this"].attributes["for_each"] == "var.secrets"


def test_everything_of_the_cluster_depends_on_the_variable() -> None:
    cluster = [name for name in resources() if "container" in name or "nodes" in name or "pods" in name]
    assert len(cluster) == 7
    for name in cluster:
        block = resources()[name].attributes
        assert "var.cluster ?" in block.get("count", block.get("for_each", "")), name


@pytest.mark.parametrize(
    "changes",
    [
        {"project": 'x"; evil'},
        {"project": "UPPER"},
        {"zone": "us-east1"},
        {"name": "${file}"},
        {"bucket": "a b"},
        {"secrets": ("a/b",)},
        {"namespace": "x]"},
    ],
)
def test_names_that_google_would_refuse_are_refused(changes: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        InfraSpec(**{"project": "my-project", **changes})  # type: ignore[arg-type]


def test_the_verb_prints_the_module_or_writes_it_and_applies_nothing(headway: Headway) -> None:
    said = headway("infra", "gcp", "--project", "my-project", "--accelerator", "L4:1")
    assert said.code == 0
    assert '"accelerator": "nvidia-l4"' in said.out
    assert '"machine": "g2-standard-8"' in said.out
    assert "nothing has been written or applied" in said.err
    assert headway("infra", "gcp", "--project", "my-project", "--accelerator", "RTX3090:1").code == 2
    assert headway("infra", "gcp").code == 2
    assert headway("infra", "gcp", "--project", "my-project", "--out", "main.tf").code == 2
    assert headway("infra", "gcp", "--project", "my-project", "--out", "infra").code == 0
    assert {path.name for path in Path("infra").iterdir()} == {*MODULE, VALUES}


def test_values_come_from_a_job_file_and_options_go_before_it(headway: Headway) -> None:
    Path("job.yaml").write_text(JOB)
    said = headway("infra", "gcp", "-f", "job.yaml", "--out", "infra", "--namespace", "mine")
    assert said.code == 0, said.err
    values = json.loads(Path("infra", VALUES).read_text())
    expected = {
        "project": "my-project",
        "zone": "us-east1-c",
        "namespace": "mine",
        "bucket": "my-bucket",
        "secrets": ["wandb-key"],
        "accelerator": "nvidia-l4",
        "gpus": 2,
        "max_nodes": 4,
        "spot": True,
    }
    assert {name: values[name] for name in expected} == expected
