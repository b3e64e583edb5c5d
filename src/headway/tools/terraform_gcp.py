"""Google Cloud resources for Headway as Terraform, each with the least permissions it needs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from headway.core.errors import BadInput
from headway.packaging.reference import GOOGLE_PROJECT

_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,28}[a-z0-9])?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_ZONE = re.compile(r"[a-z]+-[a-z]+\d+-[a-z]")


@dataclass(frozen=True, kw_only=True, slots=True)
class InfraSpec:
    """What to generate. Names are validated, because they are inserted into quoted strings."""

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
    most_nodes: int = 2
    spot: bool = False
    cluster: bool = True
    workbench: bool = False
    keep_days: int = 30
    labels: dict[str, str] = field(default_factory=dict)

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

    @property
    def region(self) -> str:
        return self.zone.rpartition("-")[0]

    @property
    def bucket_name(self) -> str:
        return self.bucket or f"{self.project}-{self.name}"


def terraform(spec: InfraSpec) -> str:
    """Render the whole file, formatted as by `terraform fmt`."""
    parts = [_head(spec), _apis(spec), _bucket(spec), _registry(spec), _accounts(spec)]
    if spec.cluster:
        parts += [_cluster(spec), _identity(spec)]
    parts += [_secret(name) for name in spec.secrets]
    if spec.billing_account:
        parts.append(_budget(spec))
    if spec.workbench:
        parts.append(_workbench(spec))
    return "\n".join([*parts, _outputs(spec)])


def _head(w: InfraSpec) -> str:
    return f'''\
# Printed by `headway infra gcp`. Nothing has been applied:
#   terraform init && terraform plan && terraform apply

terraform {{
  required_version = ">= 1.5"
  required_providers {{
    google = {{
      source  = "hashicorp/google"
      version = ">= 6.0, < 8.0"
    }}
  }}
}}

provider "google" {{
  project = "{w.project}"
  region  = "{w.region}"
}}

data "google_project" "this" {{
  project_id = "{w.project}"
}}
'''


def _apis(w: InfraSpec) -> str:
    names = ["aiplatform", "artifactregistry", "iam", "secretmanager", "storage"]
    names += ["container"] if w.cluster else []
    names += ["billingbudgets"] if w.billing_account else []
    names += ["notebooks"] if w.workbench else []
    listed = "".join(f'    "{name}.googleapis.com",\n' for name in sorted(names))
    return f"""\
resource "google_project_service" "api" {{
  for_each = toset([
{listed}  ])
  service            = each.value
  disable_on_destroy = false
}}
"""


def _bucket(w: InfraSpec) -> str:
    return f'''\
# Runs, checkpoints and models. In the region of the machines: traffic between regions is billed.
resource "google_storage_bucket" "runs" {{
  name                        = "{w.bucket_name}"
  location                    = "{w.region.upper()}"
  storage_class               = "STANDARD"
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  versioning {{
    enabled = true
  }}

  # Keep overwritten and deleted objects for a week.
  lifecycle_rule {{
    condition {{
      days_since_noncurrent_time = 7
      with_state                 = "ARCHIVED"
    }}
    action {{
      type = "Delete"
    }}
  }}

  # Checkpoints of runs that ended long ago. Exports lie elsewhere in the run's folder and stay.
  lifecycle_rule {{
    condition {{
      age            = {w.keep_days}
      matches_suffix = [".safetensors"]
      matches_prefix = ["runs/"]
    }}
    action {{
      type          = "SetStorageClass"
      storage_class = "NEARLINE"
    }}
  }}

  lifecycle_rule {{
    condition {{
      age = 1
    }}
    action {{
      type = "AbortIncompleteMultipartUpload"
    }}
  }}

  depends_on = [google_project_service.api]
}}
'''


def _registry(w: InfraSpec) -> str:
    return f'''\
resource "google_artifact_registry_repository" "images" {{
  location      = "{w.region}"
  repository_id = "{w.name}"
  format        = "DOCKER"
  description   = "Images built by Headway"

  cleanup_policies {{
    id     = "keep-the-newest"
    action = "KEEP"
    most_recent_versions {{
      keep_count = 10
    }}
  }}
  cleanup_policies {{
    id     = "delete-the-old"
    action = "DELETE"
    condition {{
      older_than = "2592000s"
    }}
  }}

  depends_on = [google_project_service.api]
}}
'''


def _accounts(w: InfraSpec) -> str:
    return f'''\
# The identity of training jobs. It may use this bucket, read these images and write logs, nothing else.
resource "google_service_account" "trainer" {{
  account_id   = "{w.name}-trainer"
  display_name = "Trains for Headway"
}}

resource "google_storage_bucket_iam_member" "trainer_uses_the_bucket" {{
  bucket = google_storage_bucket.runs.name
  role   = "roles/storage.objectUser"
  member = "serviceAccount:${{google_service_account.trainer.email}}"
}}

resource "google_artifact_registry_repository_iam_member" "trainer_pulls_images" {{
  location   = google_artifact_registry_repository.images.location
  repository = google_artifact_registry_repository.images.name
  role       = "roles/artifactregistry.reader"
  member     = "serviceAccount:${{google_service_account.trainer.email}}"
}}

resource "google_project_iam_member" "trainer_writes_logs" {{
  project = "{w.project}"
  role    = "roles/logging.logWriter"
  member  = "serviceAccount:${{google_service_account.trainer.email}}"
}}
'''


def _cluster(w: InfraSpec) -> str:
    spot = "\n    spot         = true" if w.spot else ""
    return f'''\
resource "google_service_account" "nodes" {{
  account_id   = "{w.name}-nodes"
  display_name = "The cluster's machines"
}}

resource "google_project_iam_member" "nodes" {{
  for_each = toset([
    "roles/logging.logWriter",
    "roles/monitoring.metricWriter",
    "roles/monitoring.viewer",
  ])
  project = "{w.project}"
  role    = each.value
  member  = "serviceAccount:${{google_service_account.nodes.email}}"
}}

resource "google_artifact_registry_repository_iam_member" "nodes_pull_images" {{
  location   = google_artifact_registry_repository.images.location
  repository = google_artifact_registry_repository.images.name
  role       = "roles/artifactregistry.reader"
  member     = "serviceAccount:${{google_service_account.nodes.email}}"
}}

resource "google_container_cluster" "this" {{
  name                     = "{w.name}"
  location                 = "{w.zone}"
  remove_default_node_pool = true
  initial_node_count       = 1
  deletion_protection      = false

  workload_identity_config {{
    workload_pool = "{w.project}.svc.id.goog"
  }}

  release_channel {{
    channel = "REGULAR"
  }}

  depends_on = [google_project_service.api]
}}

# A small machine for what the cluster itself needs.
resource "google_container_node_pool" "system" {{
  name       = "system"
  cluster    = google_container_cluster.this.id
  node_count = 1

  node_config {{
    machine_type    = "e2-standard-2"
    disk_size_gb    = 100
    service_account = google_service_account.nodes.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]

    workload_metadata_config {{
      mode = "GKE_METADATA"
    }}
  }}
}}

# GPUs: none while nobody trains.
resource "google_container_node_pool" "gpu" {{
  name    = "gpu"
  cluster = google_container_cluster.this.id

  autoscaling {{
    min_node_count = 0
    max_node_count = {w.most_nodes}
  }}

  management {{
    auto_repair  = true
    auto_upgrade = true
  }}

  node_config {{
    machine_type = "{w.machine}"{spot}
    disk_size_gb = 100
    disk_type    = "pd-balanced"

    service_account = google_service_account.nodes.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]

    guest_accelerator {{
      type  = "{w.accelerator}"
      count = {w.gpus}
      gpu_driver_installation_config {{
        gpu_driver_version = "DEFAULT"
      }}
    }}

    workload_metadata_config {{
      mode = "GKE_METADATA"
    }}
  }}
}}
'''


def _identity(w: InfraSpec) -> str:
    return f"""\
# Pods with this Kubernetes service account act as the trainer. In the cluster:
#   kubectl create serviceaccount {w.name} -n {w.namespace}
#   kubectl annotate serviceaccount {w.name} -n {w.namespace} \\
#     iam.gke.io/gcp-service-account={w.name}-trainer@{w.project}.iam.gserviceaccount.com
resource "google_service_account_iam_member" "pods_are_the_trainer" {{
  service_account_id = google_service_account.trainer.name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:{w.project}.svc.id.goog[{w.namespace}/{w.name}]"
  depends_on         = [google_container_cluster.this]
}}
"""


def _secret(name: str) -> str:
    label = re.sub(r"[^a-z0-9_]", "_", name.lower())
    label = label if label[0].isalpha() else f"s_{label}"
    return f'''\
# Add the value by hand, so that it is not in the state file:
#   printf %s VALUE | gcloud secrets versions add {name} --data-file=-
resource "google_secret_manager_secret" "{label}" {{
  secret_id = "{name}"

  replication {{
    auto {{}}
  }}

  depends_on = [google_project_service.api]
}}

resource "google_secret_manager_secret_iam_member" "trainer_reads_{label}" {{
  secret_id = google_secret_manager_secret.{label}.id
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${{google_service_account.trainer.email}}"
}}
'''


def _budget(w: InfraSpec) -> str:
    return f'''\
# An alert, not a limit: runs are limited by their own budget.
resource "google_billing_budget" "this" {{
  billing_account = "{w.billing_account}"
  display_name    = "{w.name}"

  budget_filter {{
    projects = ["projects/${{data.google_project.this.number}}"]
  }}

  amount {{
    specified_amount {{
      currency_code = "USD"
      units         = "{w.budget_usd:.0f}"
    }}
  }}

  dynamic "threshold_rules" {{
    for_each = [0.5, 0.9, 1.0]
    content {{
      threshold_percent = threshold_rules.value
    }}
  }}
}}
'''


def _workbench(w: InfraSpec) -> str:
    return f'''\
resource "google_workbench_instance" "this" {{
  name     = "{w.name}"
  location = "{w.zone}"

  gce_setup {{
    machine_type = "e2-standard-4"

    service_accounts {{
      email = google_service_account.trainer.email
    }}

    metadata = {{
      idle-timeout-seconds = "3600"
    }}
  }}

  depends_on = [google_project_service.api]
}}
'''


def _outputs(w: InfraSpec) -> str:
    service = "google_service_account.trainer.email"
    return f"""\
output "job_file" {{
  description = "What to put into headway.yaml"
  value       = <<-EOT
    outputs: gs://${{google_storage_bucket.runs.name}}/runs
    image: {{repository: {w.region}-docker.pkg.dev/{w.project}/{w.name}/train}}
    targets:
      vertex: {{kind: vertex, project: {w.project}, region: {w.region}, service_account: ${{{service}}}}}
{_gke(w)}  EOT
}}
"""


def _gke(w: InfraSpec) -> str:
    if not w.cluster:
        return ""
    options = f"project: {w.project}, cluster: {w.name}, location: {w.zone}"
    account = f"namespace: {w.namespace}, service_account: {w.name}"
    return f"      gke: {{kind: kubernetes, {options}, {account}}}\n"
