"""Text translation."""
