"""Experiment trackers, each in a process of its own."""
