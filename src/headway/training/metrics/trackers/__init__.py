"""Experiment trackers, each in its own process."""
