"""When memory runs out: what to type, and on request the same training with every batch cut finer.

`accumulate: auto` in the config (or HEADWAY_ACCUMULATE=auto) begins with whole batches. A rank that runs out of memory
tells its supervisor, which starts the ranks again with twice as many micro-batches. The global batch stays what it is,
and so does training but for rounding: sums are added in another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.core.errors import BadInput

AUTO, VARIABLE = "auto", "HEADWAY_ACCUMULATE"
PARTS = "HEADWAY_PARTS"  # from the supervisor: into how many parts earlier attempts have come to cut a batch
MOST = 256  # parts: whoever needs more has another trouble


class MicroBatching:
    """Into how many micro-batches each rank's batch is cut, and whether more may become of them."""

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
        """How many parts to try after this error; None where more would not help, or are not wanted."""
        if not self.automatic or not ran_out(error) or self.parts * 2 > MOST:
            return None
        return self.parts * 2


def ran_out(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text


def hint(error: BaseException) -> str:
    """What to type when memory ran out; empty for any other error."""
    if not ran_out(error):
        return ""
    return (
        "memory ran out. fix: --set config.accumulate=2 cuts each batch in two and changes nothing else "
        "(4, 8, … if that is not enough); or lower config.batch, or use config.precision=bf16"
    )
