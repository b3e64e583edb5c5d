"""The ways to run a job in a cluster: PyTorchJob, TrainJob, StatefulSet. One module each, with the same names."""
