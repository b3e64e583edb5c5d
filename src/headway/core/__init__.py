"""Values and helpers that every package may import. Nothing but the standard library."""
