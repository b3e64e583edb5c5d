"""Vertex AI target: one custom job per run, one supervisor per machine."""
