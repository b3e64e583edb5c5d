"""The messages of messages.txt, each with the name of the failure that it shows."""

from __future__ import annotations

from pathlib import Path

_LINES = Path(__file__).with_suffix(".txt").read_text().splitlines()
MESSAGES = [(name, message) for name, _, message in (line.partition("\t") for line in _LINES) if message]
