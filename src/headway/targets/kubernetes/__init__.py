"""Kubernetes as a target: a PyTorchJob, a TrainJob, or a StatefulSet on a cluster without any operator."""
