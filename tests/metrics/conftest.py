"""What of the scores can be tested without numpy."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

# Without the train extra there is no numpy; the tokenizer does without it, everything else cannot be imported.
collect_ignore = [] if find_spec("numpy") else [one.name for one in Path(__file__).parent.glob("test_[!p]*.py")]
