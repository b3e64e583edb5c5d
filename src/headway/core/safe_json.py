"""Text of strangers, read with suspicion. Costs an import of json."""

from __future__ import annotations

import json
from typing import Any


def json_of(text: str | bytes | bytearray) -> Any:
    """What the JSON says. ValueError is the only way it fails, also for what is nested without end."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
