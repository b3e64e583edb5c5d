"""The Terraform that is printed: formatted, valid for the provider, and no more generous than it must be."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from headway.core.errors import BadInput
from headway.tools.terraform_gcp import InfraSpec, terraform
from tests.cli.conftest import Headway
from tests.cli.conftest import headway as headway
from tests.tools.hcl import Block, parse
from tests.tools.provider import META, camel, structs, wheel

FULL = InfraSpec(
    project="my-project", zone="us-east1-c", secrets=("wandb-key", "9lives"), billing_account="0A1B2C-3D4E5F-6A7B8C",
    workbench=True, spot=True,
)  # fmt: skip
PLAIN = InfraSpec(project="my-project", cluster=False)
needs_terraform = pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not installed")
needs_schema = pytest.mark.skipif(
    wheel() is None, reason="pip download --no-deps -d .cache cdktf-cdktf-provider-google brings the schema"
)


def resources(wanted: InfraSpec) -> dict[str, Block]:
    return {".".join(block.labels): block for block in parse(terraform(wanted)).blocks if block.kind == "resource"}


@needs_terraform
@pytest.mark.parametrize("wanted", [FULL, PLAIN], ids=["full", "plain"])
def test_it_is_formatted_as_terraform_formats(wanted: InfraSpec, tmp_path: Path) -> None:
    (tmp_path / "main.tf").write_text(terraform(wanted))
    done = subprocess.run(
        ["terraform", "fmt", "-check", "-diff", "main.tf"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_schema
@pytest.mark.parametrize("wanted", [FULL, PLAIN], ids=["full", "plain"])
def test_every_block_and_attribute_is_one_of_the_providers(wanted: InfraSpec) -> None:
    checked = 0
    for block in resources(wanted).values():
        kind = block.labels[0]
        name = camel(kind.removeprefix("google_"))
        known = structs(kind)
        checked += _check(block, f"{name}Config", name, known)
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
    for name, block in resources(FULL).items():
        role = block.attributes.get("role", "")
        assert not re.search(r"owner|editor|admin", role), name
        if name.startswith("google_project_iam_member"):
            roles = role if role != "each.value" else block.attributes["for_each"]
            assert set(re.findall(r"roles/(\w+)\.", roles)) <= {"logging", "monitoring"}


def test_the_bucket_is_versioned_private_and_forgets_what_is_old() -> None:
    bucket = resources(FULL)["google_storage_bucket.runs"]
    assert bucket.attributes["uniform_bucket_level_access"] == "true"
    assert bucket.attributes["public_access_prevention"] == '"enforced"'
    kinds = [inner.kind for inner in bucket.blocks]
    assert kinds.count("lifecycle_rule") == 3
    assert "versioning" in kinds
    assert bucket.attributes["location"] == '"US-EAST1"'


def test_gpu_machines_come_and_go_and_pods_are_who_they_are_meant_to_be() -> None:
    made = resources(FULL)
    pool = made["google_container_node_pool.gpu"]
    scaling = next(inner for inner in pool.blocks if inner.kind == "autoscaling")
    assert scaling.attributes["min_node_count"] == "0"
    node = next(inner for inner in pool.blocks if inner.kind == "node_config")
    assert node.attributes["disk_size_gb"] == "100"
    assert node.attributes["spot"] == "true"
    assert any(inner.attributes.get("mode") == '"GKE_METADATA"' for inner in node.blocks)
    binding = made["google_service_account_iam_member.pods_are_the_trainer"]
    assert binding.attributes["member"] == '"serviceAccount:my-project.svc.id.goog[default/headway]"'


def test_no_secrets_value_is_in_it() -> None:
    text = terraform(FULL)
    assert "google_secret_manager_secret_version" not in text
    assert {"google_secret_manager_secret.wandb_key", "google_secret_manager_secret.s_9lives"} <= set(resources(FULL))


def test_without_a_cluster_there_is_none() -> None:
    assert not any("container" in name for name in resources(PLAIN))


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
def test_names_that_would_break_out_of_their_quotes_are_refused(changes: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        InfraSpec(**{"project": "my-project", **changes})  # type: ignore[arg-type]


def test_the_verb_prints_it_and_applies_nothing(headway: Headway) -> None:
    said = headway("infra", "gcp", "--project", "my-project", "--accelerator", "L4:1")
    assert said.code == 0
    assert 'type  = "nvidia-l4"' in said.out
    assert 'machine_type = "g2-standard-8"' in said.out
    assert "Nothing has been applied" in said.out
    assert headway("infra", "gcp", "--project", "my-project", "--accelerator", "RTX3090:1").code == 2
    assert headway("infra", "gcp", "--project", "my-project", "--out", "main.tf").code == 0
    assert Path("main.tf").read_text().startswith("# Printed by")
