"""Data sets that are drawn or composed, for demos and tests."""
