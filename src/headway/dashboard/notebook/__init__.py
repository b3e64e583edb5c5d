"""Runs in notebooks: a run object that shows itself as a card, and Jupyter beside a run, wherever it is."""
