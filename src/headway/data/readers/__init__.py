"""Readers, one module per source format."""
