"""The Terraform module for Google Cloud (`terraform/gcp`, package data) and the values of its variables."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from headway.core.errors import BadInput
from headway.packaging.reference import GOOGLE_PROJECT
from headway.spec import Job
from headway.spec.units import format_accelerator

MODULE: Final = ("main.tf", "variables.tf", "outputs.tf")
VALUES: Final = "terraform.tfvars.json"

_SECRET: Final = "gcp-sm://"
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,28}[a-z0-9])?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_ZONE = re.compile(r"[a-z]+-[a-z]+\d+-[a-z]")


@dataclass(frozen=True, kw_only=True, slots=True)
class InfraSpec:
    """Values of the module's variables, by the variables' names. Raises BadInput for names that Google would refuse."""

    project: str
    zone: str = "us-central1-a"
    name: str = "headway"
    bucket: str = ""
    namespace: str = "default"
    secrets: tuple[str, ...] = ()
    budget_usd: float = 50.0
    billing_account: str = ""
    machine: str = "n1-standard-4"
    accelerator: str = "nvidia-tesla-t4"
    gpus: int = 1
    max_nodes: int = 2
    spot: bool = False
    cluster: bool = True
    workbench: bool = False

    def __post_init__(self) -> None:
        checks = (
            ("project", self.project, GOOGLE_PROJECT, "my-project"),
            ("zone", self.zone, _ZONE, "us-central1-a"),
            ("name", self.name, _NAME, "headway"),
            ("namespace", self.namespace, _NAME, "default"),
            ("bucket", self.bucket or "bucket", _BUCKET, "my-project-headway"),
            ("machine", self.machine, re.compile(r"[a-z0-9-]{4,40}"), "n1-standard-4"),
            ("billing account", self.billing_account or "A-1", re.compile(r"[A-Z0-9-]+"), "000000-000000-000000"),
            *(("secret", one, re.compile(r"[A-Za-z0-9_-]{1,255}"), "wandb-key") for one in self.secrets),
        )
        for what, value, pattern, example in checks:
            if not pattern.fullmatch(value):
                raise BadInput(f"{value!r} is not a valid {what}", fix=f"for example {example}")


def job_values(job: Job) -> dict[str, Any]:
    """Return the values that a job file states: project, zone, namespace, bucket, secrets, GPUs and spot.

    `accelerator` is as in the job file, such as `T4:1`.
    """
    options = [entry.options for entry in job.targets.values() if entry.kind in ("kubernetes", "vertex")]
    secrets = [secret.ref.removeprefix(_SECRET) for secret in job.secrets.values() if secret.ref.startswith(_SECRET)]
    wanted = job.resources.accelerator
    found = {
        "project": _first(options, "project"),
        "zone": next((each["location"] for each in options if _ZONE.fullmatch(each.get("location") or "")), None),
        "namespace": _first(options, "namespace"),
        "bucket": job.outputs.removeprefix("gs://").partition("/")[0] if job.outputs.startswith("gs://") else None,
        "secrets": tuple(dict.fromkeys(name for name in secrets if "/" not in name)),
        "accelerator": format_accelerator(wanted) if wanted else None,
        "machine": job.resources.machine if wanted else None,
        "max_nodes": job.resources.nodes if job.resources.nodes > 1 else None,
        "spot": job.resources.spot,
    }
    return {name: value for name, value in found.items() if value}


def _first(options: Sequence[Mapping[str, Any]], key: str) -> Any:
    return next((each[key] for each in options if each.get(key)), None)


def module_files(spec: InfraSpec) -> dict[str, str]:
    """Return the files of a Terraform root module by name: the module and `terraform.tfvars.json`."""
    folder = files("headway.tools") / "terraform" / "gcp"
    module = {name: (folder / name).read_text(encoding="utf-8") for name in MODULE}
    return {**module, VALUES: json.dumps(asdict(spec), indent=2) + "\n"}


def write_module(spec: InfraSpec, folder: Path) -> None:
    """Write the files into a folder, replacing those of the same names. Terraform's state beside them is left alone."""
    if folder.suffix == ".tf" or (folder.exists() and not folder.is_dir()):
        raise BadInput(f"{folder} is a file, and the module has {len(MODULE) + 1}", fix="--out infra   (a folder)")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in module_files(spec).items():
        (folder / name).write_text(text, encoding="utf-8")
