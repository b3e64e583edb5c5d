"""Diagnose why a run failed: the cause, the line that shows it, and the command to type next. Makes no requests."""
