"""The local target: run on this machine."""
