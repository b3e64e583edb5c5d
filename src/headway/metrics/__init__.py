"""Scores of captions, translations, classes and grades: sums over whole sets, checked against the public tools."""
