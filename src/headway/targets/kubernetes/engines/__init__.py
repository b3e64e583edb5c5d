"""Engines that run a job in a cluster: PyTorchJob, TrainJob, StatefulSet. Their modules share one set of names."""
