output "job_file" {
  description = "What to put into headway.yaml"
  value       = <<-EOT
    outputs: gs://${google_storage_bucket.runs.name}/runs
    image: {repository: ${local.region}-docker.pkg.dev/${var.project}/${var.name}/train}
    targets:
      vertex: {kind: vertex, project: ${var.project}, region: ${local.region}, service_account: ${google_service_account.trainer.email}}
    %{~if var.cluster~}

      gke: {kind: kubernetes, project: ${var.project}, cluster: ${var.name}, location: ${var.zone}, namespace: ${var.namespace}, service_account: ${var.name}}
    %{~endif~}

  EOT
}

output "kubectl" {
  description = "Commands that create the Kubernetes service account of training pods"
  value       = <<-EOT
    kubectl create serviceaccount ${var.name} -n ${var.namespace}
    kubectl annotate serviceaccount ${var.name} -n ${var.namespace} iam.gke.io/gcp-service-account=${google_service_account.trainer.email}
  EOT
}
