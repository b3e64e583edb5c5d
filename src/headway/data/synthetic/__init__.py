"""Generated data sets for demos and tests."""
