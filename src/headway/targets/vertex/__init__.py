"""Vertex AI as a target: one custom job a run, one supervisor on each machine."""
