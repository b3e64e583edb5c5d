"""Metrics: logging, progress, trackers."""
