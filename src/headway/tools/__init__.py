"""Optional tools: verify-resume, CI pipelines, Terraform."""
