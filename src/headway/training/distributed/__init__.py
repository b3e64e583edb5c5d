"""The process group and gradient reduction."""
