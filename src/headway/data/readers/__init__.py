"""Readers: one file for each format that data comes in."""
