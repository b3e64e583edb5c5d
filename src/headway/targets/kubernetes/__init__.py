"""Kubernetes target: runs a job as a PyTorchJob, a TrainJob or, on a cluster without an operator, a StatefulSet."""
