"""What is made from a trained model: evaluation, export, comparison, prediction, report."""
