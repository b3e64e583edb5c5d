"""Checkpoints: staging, writing, reading, index and retention."""
