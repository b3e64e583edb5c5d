"""Why a run failed: the cause, the line that shows it, and what to type. Reads, never asks a network."""
