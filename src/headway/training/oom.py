"""Out-of-memory handling: a hint for the user, and on request a retry with more micro-batches.

`accumulate: auto` in the config (or HEADWAY_ACCUMULATE=auto) starts with whole batches. A rank that runs out of memory
reports it to its supervisor, which restarts the ranks with twice as many micro-batches. The global batch is unchanged,
and so is training but for rounding: sums are added in another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.core.errors import BadInput

AUTO, VARIABLE = "auto", "HEADWAY_ACCUMULATE"
PARTS = "HEADWAY_PARTS"  # set by the supervisor: the number of micro-batches that earlier attempts arrived at
MOST = 256  # micro-batches; if that is not enough, the batch size is not the cause


class MicroBatching:
    """The number of micro-batches per rank, and whether it may grow after an out-of-memory error."""

    def __init__(self, config: Mapping[str, Any], env: Mapping[str, str]) -> None:
        asked = env.get(VARIABLE) or config.get("accumulate", 1)
        self.automatic = asked == AUTO
        try:
            self.parts = int(env.get(PARTS, 1)) if self.automatic else int(asked)
        except (TypeError, ValueError):
            raise BadInput(f"accumulate: {asked} is not a number of micro-batches", fix="1, 2, 4, … or auto") from None
        if self.parts < 1:
            raise BadInput(f"accumulate: {asked} is less than one micro-batch", fix="1, 2, 4, … or auto")

    def finer(self, error: BaseException) -> int | None:
        """Return how many micro-batches to try after this error, or None if more would not help or are not allowed."""
        if not self.automatic or not ran_out(error) or self.parts * 2 > MOST:
            return None
        return self.parts * 2


def ran_out(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text


def hint(error: BaseException) -> str:
    """Return what to type after an out-of-memory error; empty for any other error."""
    if not ran_out(error):
        return ""
    return (
        "memory ran out. fix: --set config.accumulate=2 cuts each batch in two and changes nothing else "
        "(4, 8, … if that is not enough); or lower config.batch_size, or use config.precision=bf16"
    )
