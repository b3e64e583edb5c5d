"""Artifacts of a trained model: evaluation, export, comparison, prediction, report."""
