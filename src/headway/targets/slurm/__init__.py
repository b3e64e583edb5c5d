"""Slurm as a target: one batch job a run, one supervisor a node."""
