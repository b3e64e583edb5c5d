"""Training data as a pure function of epoch and step."""
