"""Slurm target: one batch job per run, one supervisor per node."""
