"""Batches from prepared data."""
