"""Runs in notebooks: a run object with an HTML card, and Jupyter on a run's machine."""
