"""Parse and format durations, sizes, cadences and accelerators as people type them. Pure functions on text.

Parsing and formatting are inverse: `parse_duration(format_duration(x)) == x`, and likewise for each pair.
"""

from __future__ import annotations

import re

from headway.spec.model import Accelerator, Cadence
from headway.spec.rules import closest_name

SECONDS = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
DECIMAL = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
BYTES = DECIMAL | BINARY

# The accelerators that `resources.accelerator` may name. GPU means any type.
ACCELERATORS = (
    *("P4", "P100", "V100", "V100-32GB", "T4"),
    *("A10", "A10G", "A30", "A40", "A100", "A100-80GB", "L4", "L40", "L40S"),
    *("H100", "H100-MEGA", "H200", "GH200", "B200", "B300", "GB200"),
    *("RTX3090", "RTX4090", "RTX5090", "RTXA5000", "RTXA6000", "RTX6000ADA", "RTXPRO6000"),
    *("MI250X", "MI300X", "GPU"),
)

_NUMBER = r"[0-9]{1,20}(?:[.][0-9]{1,6})?"
_PARTS = " *".join(f"(?:{_NUMBER}{unit})?" for unit in SECONDS)

# Shared with the JSON Schema, so they use no syntax that only Python's `re` has.
DURATION_PATTERN = rf"^(?=[0-9]){_PARTS}$"
SIZE_PATTERN = rf"^{_NUMBER} *(?:{'|'.join(BYTES)})$"
CADENCE_PATTERN = rf"^(?:(?=[0-9]){_PARTS}|[1-9][0-9]{{0,11}} *(?:steps?|epochs?))$"
ACCELERATOR_PATTERN = rf"^(?:{'|'.join(ACCELERATORS)})(?::[1-9][0-9]{{0,3}})?$"


_CADENCES = "write 10m, 500 steps or 5 epochs"


class BadUnit(ValueError):
    """The text is not a duration, size, cadence or accelerator. `fix` says what to write instead."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what, self.fix = what, fix


def parse_duration(text: str) -> float:
    """Parse `90s`, `10m`, `8h`, `2d` or `1h30m` to seconds, with a resolution of a millisecond."""
    text = text.strip()
    if not re.match(DURATION_PATTERN, text):
        raise _not_a_duration(text)
    parts = re.findall(rf"({_NUMBER})([a-z])", text)
    return round(sum(float(number) * SECONDS[unit] for number, unit in parts), 3)


def _not_a_duration(text: str) -> BadUnit:
    if re.fullmatch(_NUMBER, text):
        return BadUnit(f"the duration {text} has no unit", f"write {text}s, {text}m or {text}h")
    words = re.fullmatch(rf"({_NUMBER}) *([a-zA-Z]+)", text)
    if words and words[2][0].lower() in SECONDS and words[2].lower() not in ("ms", "mo", "month", "months"):
        return BadUnit(f"'{text}' is not a duration", f"write {words[1]}{words[2][0].lower()}")
    return BadUnit(f"'{text}' is not a duration", "write 90s, 10m, 8h, 2d or 1h30m")


def format_duration(seconds: float) -> str:
    """Format seconds as the shortest text that `parse_duration` parses to the same value: `1h30m`."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    parts = []
    for unit, length in SECONDS.items():
        count, whole = divmod(whole, length)
        if unit == "s" and thousandths:
            parts.append(f"{count}.{thousandths:03}".rstrip("0") + unit)
        elif count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_size(text: str) -> int:
    """Parse `512MB`, `30GB`, `1TB` (powers of 1000) or `30GiB` (powers of 1024) to bytes."""
    text = text.strip()
    if not re.match(SIZE_PATTERN, text):
        raise _not_a_size(text)
    number, unit = re.findall(rf"({_NUMBER}) *([A-Za-z]+)", text)[0]
    count = round(float(number) * BYTES[unit]) if "." in number else int(number) * BYTES[unit]
    if count == 0:
        raise BadUnit(f"the size '{text}' is zero", "write 512MB, 30GB, 1TB or 30GiB, or leave the key out")
    return count


def _not_a_size(text: str) -> BadUnit:
    if re.fullmatch(_NUMBER, text):
        return BadUnit(f"the size {text} has no unit", f"write {text}MB, {text}GB or {text}GiB")
    words = re.fullmatch(rf"({_NUMBER}) *([kKmMgGtTpP])([iI]?)[bB]?", text)
    if words:
        number, prefix, binary = words[1], words[2].upper(), "i" if words[3] else ""
        return BadUnit(f"'{text}' is not a size", f"write {number}{prefix}{binary}B")
    return BadUnit(f"'{text}' is not a size", "write 512MB, 30GB, 1TB or 30GiB")


def format_size(count: int) -> str:
    """Format bytes as the shortest text that `parse_size` parses to the same value: `30GB`, `30GiB`, `1234567B`."""
    exact = [(count // factor, unit) for unit, factor in BYTES.items() if count % factor == 0]
    number, unit = min(exact, key=lambda pair: (len(str(pair[0])), len(pair[1])))
    return f"{number}{unit}"


def parse_cadence(text: str) -> Cadence:
    """Parse how often something happens: a duration, `500 steps` or `5 epochs`."""
    text = text.strip()
    counted = re.fullmatch(r"([0-9]{1,12}) *(step|epoch)s?", text)
    number = int(counted[1]) if counted else _seconds_between(text)
    if number <= 0:
        raise BadUnit(f"'{text}' means never", _CADENCES)
    if counted:
        return Cadence(steps=int(number)) if counted[2] == "step" else Cadence(epochs=int(number))
    return Cadence(seconds=number)


def _seconds_between(text: str) -> float:
    if re.fullmatch(r"[0-9]{1,12}", text):
        raise BadUnit(f"{text!r} has no unit", f"write {text}m, {text} steps or {text} epochs")
    try:
        return parse_duration(text)
    except BadUnit as bad:
        guessed = "," not in bad.fix
        raise BadUnit(f"'{text}' does not say how often", bad.fix if guessed else _CADENCES) from None


def format_cadence(every: Cadence) -> str:
    if every.steps is not None:
        return f"{every.steps} step{'s' * (every.steps != 1)}"
    if every.epochs is not None:
        return f"{every.epochs} epoch{'s' * (every.epochs != 1)}"
    return format_duration(every.seconds or 0.0)


def parse_accelerator(text: str) -> Accelerator:
    """Parse `T4:1`, or `T4` for one of them."""
    kind, _, count = text.strip().partition(":")
    if kind not in ACCELERATORS:
        near = closest_name(kind, ACCELERATORS)
        known = f"one of {', '.join(ACCELERATORS)} (GPU: any type)"
        raise BadUnit(
            f"unknown accelerator '{kind}'", f"did you mean {near}:{count or 1}?" if near else f"write {known}"
        )
    if ":" in text and not re.fullmatch(r"[1-9][0-9]{0,3}", count):
        raise BadUnit(f"'{text}': how many {kind} on each node?", f"write {kind}:1")
    return Accelerator(kind=kind, count=int(count or 1))


def format_accelerator(wanted: Accelerator) -> str:
    return f"{wanted.kind}:{wanted.count}"
