# Google Cloud resources for Headway, each with the least permissions it needs. Values are in terraform.tfvars.json.
#   terraform init && terraform plan && terraform apply

terraform {
  required_version = ">= 1.5"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.0, < 8.0"
    }
  }
}

provider "google" {
  project = var.project
  region  = local.region
}

locals {
  region  = join("-", slice(split("-", var.zone), 0, 2)) # us-central1-a -> us-central1
  trainer = "serviceAccount:${google_service_account.trainer.email}"
  apis = concat(
    ["aiplatform", "artifactregistry", "iam", "secretmanager", "storage"],
    var.cluster ? ["container"] : [],
    var.billing_account != "" ? ["billingbudgets"] : [],
    var.workbench ? ["notebooks"] : [],
  )
}

data "google_project" "this" {
  project_id = var.project
}

resource "google_project_service" "api" {
  for_each           = toset([for name in local.apis : "${name}.googleapis.com"])
  service            = each.value
  disable_on_destroy = false
}

# Runs, checkpoints and models. In the region of the machines: traffic between regions is billed.
resource "google_storage_bucket" "runs" {
  name                        = coalesce(var.bucket, "${var.project}-${var.name}")
  location                    = upper(local.region)
  storage_class               = "STANDARD"
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  versioning {
    enabled = true
  }

  # Keep overwritten and deleted objects for a week.
  lifecycle_rule {
    condition {
      days_since_noncurrent_time = 7
      with_state                 = "ARCHIVED"
    }
    action {
      type = "Delete"
    }
  }

  # Checkpoints of runs that ended long ago. Exports lie elsewhere in the run's folder and stay.
  lifecycle_rule {
    condition {
      age            = var.keep_days
      matches_suffix = [".safetensors"]
      matches_prefix = ["runs/"]
    }
    action {
      type          = "SetStorageClass"
      storage_class = "NEARLINE"
    }
  }

  lifecycle_rule {
    condition {
      age = 1
    }
    action {
      type = "AbortIncompleteMultipartUpload"
    }
  }

  depends_on = [google_project_service.api]
}

resource "google_artifact_registry_repository" "images" {
  location      = local.region
  repository_id = var.name
  format        = "DOCKER"
  description   = "Images built by Headway"

  cleanup_policies {
    id     = "keep-the-newest"
    action = "KEEP"
    most_recent_versions {
      keep_count = 10
    }
  }
  cleanup_policies {
    id     = "delete-the-old"
    action = "DELETE"
    condition {
      older_than = "2592000s"
    }
  }

  depends_on = [google_project_service.api]
}

# The identity of training jobs. It may use this bucket, read these images and write logs, nothing else.
resource "google_service_account" "trainer" {
  account_id   = "${var.name}-trainer"
  display_name = "Trains for Headway"
}

resource "google_storage_bucket_iam_member" "trainer_uses_the_bucket" {
  bucket = google_storage_bucket.runs.name
  role   = "roles/storage.objectUser"
  member = local.trainer
}

resource "google_artifact_registry_repository_iam_member" "trainer_pulls_images" {
  location   = google_artifact_registry_repository.images.location
  repository = google_artifact_registry_repository.images.name
  role       = "roles/artifactregistry.reader"
  member     = local.trainer
}

resource "google_project_iam_member" "trainer_writes_logs" {
  project = var.project
  role    = "roles/logging.logWriter"
  member  = local.trainer
}

resource "google_service_account" "nodes" {
  count = var.cluster ? 1 : 0

  account_id   = "${var.name}-nodes"
  display_name = "The cluster's machines"
}

resource "google_project_iam_member" "nodes" {
  for_each = toset(var.cluster ? [
    "roles/logging.logWriter",
    "roles/monitoring.metricWriter",
    "roles/monitoring.viewer",
  ] : [])
  project = var.project
  role    = each.value
  member  = "serviceAccount:${google_service_account.nodes[0].email}"
}

resource "google_artifact_registry_repository_iam_member" "nodes_pull_images" {
  count = var.cluster ? 1 : 0

  location   = google_artifact_registry_repository.images.location
  repository = google_artifact_registry_repository.images.name
  role       = "roles/artifactregistry.reader"
  member     = "serviceAccount:${google_service_account.nodes[0].email}"
}

resource "google_container_cluster" "this" {
  count = var.cluster ? 1 : 0

  name                     = var.name
  location                 = var.zone
  remove_default_node_pool = true
  initial_node_count       = 1
  deletion_protection      = false

  workload_identity_config {
    workload_pool = "${var.project}.svc.id.goog"
  }

  release_channel {
    channel = "REGULAR"
  }

  depends_on = [google_project_service.api]
}

# A small machine for what the cluster itself needs.
resource "google_container_node_pool" "system" {
  count = var.cluster ? 1 : 0

  name       = "system"
  cluster    = google_container_cluster.this[0].id
  node_count = 1

  node_config {
    machine_type    = "e2-standard-2"
    disk_size_gb    = 100
    service_account = google_service_account.nodes[0].email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]

    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }
}

# GPUs: none while nobody trains.
resource "google_container_node_pool" "gpu" {
  count = var.cluster ? 1 : 0

  name    = "gpu"
  cluster = google_container_cluster.this[0].id

  autoscaling {
    min_node_count = 0
    max_node_count = var.max_nodes
  }

  management {
    auto_repair  = true
    auto_upgrade = true
  }

  node_config {
    machine_type = var.machine
    spot         = var.spot
    disk_size_gb = 100
    disk_type    = "pd-balanced"

    service_account = google_service_account.nodes[0].email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]

    guest_accelerator {
      type  = var.accelerator
      count = var.gpus
      gpu_driver_installation_config {
        gpu_driver_version = "DEFAULT"
      }
    }

    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }
}

# Pods with this Kubernetes service account act as the trainer. The output `kubectl` has the commands that make it.
resource "google_service_account_iam_member" "pods_are_the_trainer" {
  count = var.cluster ? 1 : 0

  service_account_id = google_service_account.trainer.name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${var.project}.svc.id.goog[${var.namespace}/${var.name}]"
  depends_on         = [google_container_cluster.this]
}

# Add the values by hand, so that they are not in the state file:
#   printf %s VALUE | gcloud secrets versions add NAME --data-file=-
resource "google_secret_manager_secret" "this" {
  for_each  = var.secrets
  secret_id = each.value

  replication {
    auto {}
  }

  depends_on = [google_project_service.api]
}

resource "google_secret_manager_secret_iam_member" "trainer_reads" {
  for_each  = google_secret_manager_secret.this
  secret_id = each.value.id
  role      = "roles/secretmanager.secretAccessor"
  member    = local.trainer
}

# An alert, not a limit: runs are limited by their own budget.
resource "google_billing_budget" "this" {
  count           = var.billing_account != "" ? 1 : 0
  billing_account = var.billing_account
  display_name    = var.name

  budget_filter {
    projects = ["projects/${data.google_project.this.number}"]
  }

  amount {
    specified_amount {
      currency_code = "USD"
      units         = format("%.0f", var.budget_usd)
    }
  }

  dynamic "threshold_rules" {
    for_each = [0.5, 0.9, 1.0]
    content {
      threshold_percent = threshold_rules.value
    }
  }
}

resource "google_workbench_instance" "this" {
  count    = var.workbench ? 1 : 0
  name     = var.name
  location = var.zone

  gce_setup {
    machine_type = "e2-standard-4"

    service_accounts {
      email = google_service_account.trainer.email
    }

    metadata = {
      idle-timeout-seconds = "3600"
    }
  }

  depends_on = [google_project_service.api]
}
