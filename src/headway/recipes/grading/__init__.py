"""Grading: pictures of a thing in, its grade out. Near misses count less than far ones."""
