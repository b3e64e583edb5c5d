"""How much damage is too much: past it, preparing stops and says what is wrong, rather than make a poor data set."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headway.data.staging import Staging
from headway.errors import BadInput

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Threshold:
    """At most this share of the rows, or this many of them, may be bad."""

    share: float | None = None
    count: int | None = None

    @classmethod
    def parse(cls, text: str | float | int) -> Threshold:
        """`1%`, `250`, or a share such as 0.01."""
        if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
            return cls(count=text)
        if isinstance(text, float) and 0 <= text <= 1:
            return cls(share=text)
        if isinstance(text, str) and (match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)):
            if float(match[1]) <= 100:
                return cls(share=float(match[1]) / 100)
        elif isinstance(text, str) and re.fullmatch(r"\s*\d+\s*", text):
            return cls(count=int(text))
        raise BadInput(f"--max-bad {text} is neither a share nor a number", fix="write 1% or 250")

    def allows(self, total: int) -> int:
        return self.count if self.count is not None else int((self.share or 0.0) * total)

    def __str__(self) -> str:
        return str(self.count) if self.count is not None else f"{100 * (self.share or 0):g}%"


class TooMuchBad(BadInput):
    """More rows are damaged than allowed."""


def check(limit: Threshold, staging: Staging, total: int, report: str) -> None:
    """TooMuchBad, with the commonest reasons and an example of each, when the bad rows are more than allowed."""
    bad = staging.bad_rows()
    if bad <= limit.allows(total):
        return
    lines = [f"    {count} × {reason}, such as {example}" for reason, count, example in staging.faults(_SHOWN)]
    raise TooMuchBad(
        f"{bad} of {total} rows are bad, more than the {limit} allowed:\n" + "\n".join(lines),
        where=report,
        fix="mend the source, or allow more with --max-bad; every row is listed in the report",
    )
