"""Training from a repository's own pipeline: the workflow, what starts it, and what it says afterwards."""
