"""Prepared data: manifest, shards, rows, cache."""
