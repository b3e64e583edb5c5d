"""Metrics for captions, translations, classes and grades: sums over whole sets, tested against the reference tools."""
