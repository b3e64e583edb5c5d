"""Ordinal grading from pictures: far misses cost more than near ones."""
