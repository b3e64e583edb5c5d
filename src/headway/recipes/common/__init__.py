"""Helpers shared by recipes."""
