variable "project" {
  description = "The project that is billed"
  type        = string
}

variable "zone" {
  description = "The zone of the machines; the bucket and the images are in its region"
  type        = string
  default     = "us-central1-a"
}

variable "name" {
  description = "Prefix for the names of resources"
  type        = string
  default     = "headway"
}

variable "bucket" {
  description = "The bucket for runs; by default PROJECT-NAME"
  type        = string
  default     = ""
}

variable "keep_days" {
  description = "Days after which checkpoints move to cheaper storage"
  type        = number
  default     = 30
}

variable "secrets" {
  description = "Entries of Secret Manager that training jobs may read"
  type        = set(string)
  default     = []
}

variable "cluster" {
  description = "Create a Kubernetes cluster; false: Vertex AI only"
  type        = bool
  default     = true
}

variable "namespace" {
  description = "The Kubernetes namespace for jobs"
  type        = string
  default     = "default"
}

variable "machine" {
  description = "Machine type of the GPU machines"
  type        = string
  default     = "n1-standard-4"
}

variable "accelerator" {
  description = "Google's name of the GPU"
  type        = string
  default     = "nvidia-tesla-t4"
}

variable "gpus" {
  description = "GPUs per machine"
  type        = number
  default     = 1
}

variable "max_nodes" {
  description = "Maximum number of GPU machines"
  type        = number
  default     = 2
}

variable "spot" {
  description = "Use spot (preemptible) GPU machines"
  type        = bool
  default     = false
}

variable "billing_account" {
  description = "Billing account for a budget alert; empty: no alert"
  type        = string
  default     = ""
}

variable "budget_usd" {
  description = "Dollars per month for the budget alert"
  type        = number
  default     = 50
}

variable "workbench" {
  description = "Create a notebook instance that stops after an idle hour"
  type        = bool
  default     = false
}
