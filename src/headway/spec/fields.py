"""Parse and print durations, sizes, cadences and accelerators; interpret the annotations of the dataclasses in `model`.

Shared by the reader and the JSON Schema, so that both refuse the same.
"""

from __future__ import annotations

import operator
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from headway.spec.model import Accelerator, Cadence, Secret
from headway.spec.rules import closest_name

# What people type for durations, sizes, cadences and accelerators, and the way back. Pure text, no input or output.
#
# Reading and writing are inverse: `duration(duration_text(x)) == x`, and so for each pair.


SECONDS = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
DECIMAL = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
BYTES = DECIMAL | BINARY

# What `resources.accelerator` may name. GPU stands for whatever the machine has.
ACCELERATORS = (
    *("P4", "P100", "V100", "V100-32GB", "T4"),
    *("A10", "A10G", "A30", "A40", "A100", "A100-80GB", "L4", "L40", "L40S"),
    *("H100", "H100-MEGA", "H200", "GH200", "B200", "B300", "GB200"),
    *("RTX3090", "RTX4090", "RTX5090", "RTXA5000", "RTXA6000", "RTX6000ADA", "RTXPRO6000"),
    *("MI250X", "MI300X", "GPU"),
)

_NUMBER = r"[0-9]{1,20}(?:[.][0-9]{1,6})?"
_PARTS = " *".join(f"(?:{_NUMBER}{unit})?" for unit in SECONDS)

# Shared with the JSON Schema, hence without anything that only Python understands.
DURATION_PATTERN = rf"^(?=[0-9]){_PARTS}$"
SIZE_PATTERN = rf"^{_NUMBER} *(?:{'|'.join(BYTES)})$"
CADENCE_PATTERN = rf"^(?:(?=[0-9]){_PARTS}|[1-9][0-9]{{0,11}} *(?:steps?|epochs?))$"
ACCELERATOR_PATTERN = rf"^(?:{'|'.join(ACCELERATORS)})(?::[1-9][0-9]{{0,3}})?$"


_CADENCES = "write 10m, 500 steps or 5 epochs"


class BadUnit(ValueError):
    """Not a duration, size, cadence or accelerator. Says what to write instead."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what, self.fix = what, fix


def duration(text: str) -> float:
    """Seconds in `90s`, `10m`, `8h`, `2d` or `1h30m`, to the millisecond."""
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


def duration_text(seconds: float) -> str:
    """The shortest that `duration` reads back as the same seconds: `1h30m`."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    parts = []
    for unit, length in SECONDS.items():
        count, whole = divmod(whole, length)
        if unit == "s" and thousandths:
            parts.append(f"{count}.{thousandths:03}".rstrip("0") + unit)
        elif count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def size(text: str) -> int:
    """Bytes in `512MB`, `30GB`, `1TB` (powers of 1000) or `30GiB` (powers of 1024)."""
    text = text.strip()
    if not re.match(SIZE_PATTERN, text):
        raise _not_a_size(text)
    number, unit = re.findall(rf"({_NUMBER}) *([A-Za-z]+)", text)[0]
    count = round(float(number) * BYTES[unit]) if "." in number else int(number) * BYTES[unit]
    if count == 0:
        raise BadUnit(f"'{text}' is nothing", "write 512MB, 30GB, 1TB or 30GiB, or leave the key out")
    return count


def _not_a_size(text: str) -> BadUnit:
    if re.fullmatch(_NUMBER, text):
        return BadUnit(f"the size {text} has no unit", f"write {text}MB, {text}GB or {text}GiB")
    words = re.fullmatch(rf"({_NUMBER}) *([kKmMgGtTpP])([iI]?)[bB]?", text)
    if words:
        number, prefix, binary = words[1], words[2].upper(), "i" if words[3] else ""
        return BadUnit(f"'{text}' is not a size", f"write {number}{prefix}{binary}B")
    return BadUnit(f"'{text}' is not a size", "write 512MB, 30GB, 1TB or 30GiB")


def size_text(count: int) -> str:
    """The shortest that `size` reads back as the same bytes: `30GB`, `30GiB`, `1234567B`."""
    exact = [(count // factor, unit) for unit, factor in BYTES.items() if count % factor == 0]
    number, unit = min(exact, key=lambda pair: (len(str(pair[0])), len(pair[1])))
    return f"{number}{unit}"


def cadence(text: str) -> Cadence:
    """How often: a duration, `500 steps` or `5 epochs`."""
    text = text.strip()
    counted = re.fullmatch(r"([0-9]{1,12}) *(step|epoch)s?", text)
    number = int(counted[1]) if counted else _seconds_between(text)
    if number <= 0:
        raise BadUnit(f"'{text}' is never", _CADENCES)
    if counted:
        return Cadence(steps=int(number)) if counted[2] == "step" else Cadence(epochs=int(number))
    return Cadence(seconds=number)


def _seconds_between(text: str) -> float:
    if re.fullmatch(r"[0-9]{1,12}", text):
        raise BadUnit(f"{text!r} has no unit", f"write {text}m, {text} steps or {text} epochs")
    try:
        return duration(text)
    except BadUnit as bad:
        guessed = "," not in bad.fix
        raise BadUnit(f"'{text}' does not say how often", bad.fix if guessed else _CADENCES) from None


def cadence_text(every: Cadence) -> str:
    if every.steps is not None:
        return f"{every.steps} step{'s' * (every.steps != 1)}"
    if every.epochs is not None:
        return f"{every.epochs} epoch{'s' * (every.epochs != 1)}"
    return duration_text(every.seconds or 0.0)


def accelerator(text: str) -> Accelerator:
    """`T4:1`, or `T4` for one of them."""
    kind, _, count = text.strip().partition(":")
    if kind not in ACCELERATORS:
        near = closest_name(kind, ACCELERATORS)
        known = f"one of {', '.join(ACCELERATORS)} (GPU: whatever the machine has)"
        raise BadUnit(
            f"unknown accelerator '{kind}'", f"did you mean {near}:{count or 1}?" if near else f"write {known}"
        )
    if ":" in text and not re.fullmatch(r"[1-9][0-9]{0,3}", count):
        raise BadUnit(f"'{text}': how many {kind} on each node?", f"write {kind}:1")
    return Accelerator(kind=kind, count=int(count or 1))


def accelerator_text(wanted: Accelerator) -> str:
    return f"{wanted.kind}:{wanted.count}"


SECRET_FORMS = "env:NAME, file:PATH, gcp-sm://NAME, aws-sm://NAME or k8s://SECRET/KEY"


@dataclass(frozen=True, slots=True)
class Form:
    """A text with a shape: what it is called, and examples of it."""

    pattern: str
    words: str
    example: str


# gs:/bucket, with slashes missing, would be a folder of that name. `storage.mended_url` knows the same schemes.
_SLASHES_MISSING = r"(?!(?:gs|gcs|s3|s3a|s3n|az|azure|abfs|abfss|adl|wasb|wasbs|file|mem|memory|http|https):(?!//))"

# Longest 40: a run's name adds a hash and a counter, and must still be a Kubernetes name of 63.
FORMS = {
    "duration": Form(DURATION_PATTERN, "a duration", "90s, 10m, 8h, 2d or 1h30m"),
    "size": Form(SIZE_PATTERN, "a size", "512MB, 30GB, 1TB or 30GiB"),
    "job name": Form(
        r"^[a-z](?:[a-z0-9-]{0,38}[a-z0-9])?$",
        "a name of lower case letters, digits and dashes, at most 40, that starts with a letter",
        "captions-v2",
    ),
    "target name": Form(
        r"^[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?$",
        "a name of lower case letters, digits and dashes, at most 40",
        "gpu-vm",
    ),
    "file name": Form(
        r"^[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9_])?$",
        "a name of letters, digits, '_', '-' and '.'",
        "captions_v1",
    ),
    "variable": Form(r"^[A-Za-z_][A-Za-z0-9_]*$", "the name of an environment variable", "OMP_NUM_THREADS"),
    "secret": Form(
        r"^(?:env:[A-Za-z_][A-Za-z0-9_]*|file:.+|gcp-sm://[^/ ].*|aws-sm://[^/ ].*|k8s://[^/ ]+/[^/ ]+)$",
        "a reference to a secret",
        SECRET_FORMS,
    ),
    "location": Form(
        rf"^{_SLASHES_MISSING}(?!(?!gs:|s3:|az:|file:|memory:)[A-Za-z][A-Za-z0-9+.-]+://).+$",
        "a folder, or a gs://, s3:// or az:// URL",
        "gs://bucket/runs",
    ),
    "source": Form(
        rf"^{_SLASHES_MISSING}(?!(?!gs:|s3:|az:|file:|memory:|https?:)[A-Za-z][A-Za-z0-9+.-]+://).+$",
        "a folder, a gs://, s3://, az:// or https:// URL, or builtin:NAME",
        "gs://bucket/coco",
    ),
    "weights": Form(
        rf"^{_SLASHES_MISSING}(?!(?!gs:|s3:|az:|file:|memory:)[A-Za-z][A-Za-z0-9+.-]+://)[\s\S]*$",
        "a folder or file, or a gs://, s3:// or az:// URL",
        "gs://bucket/runs/captions-1",
    ),
    "local folder": Form(
        rf"^{_SLASHES_MISSING}(?![A-Za-z][A-Za-z0-9+.-]+://)[\s\S]*$", "a folder of the machine", "/data/cache"
    ),
    "absolute path": Form(r"^/.*$", "an absolute path", "/data"),
    "nfs export": Form(r"^[^/: ]+:/.*$", "SERVER:/EXPORT", "server:/export"),
    "project file": Form(r"^(?!/)(?!(?:.*/)?[.][.](?:/|$)).+$", "a file below the job file's folder", "train.py"),
}

# Marks that change how a text is read, not which texts are allowed.
EXPANDED, AS_TYPED = "env", "text"


def matches(mark: str, text: str) -> bool:
    return re.fullmatch(FORMS[mark].pattern, text) is not None


_BOUNDS = {
    ">": ("more than", operator.gt),
    ">=": ("at least", operator.ge),
    "<": ("less than", operator.lt),
    "<=": ("at most", operator.le),
}


@dataclass(frozen=True, slots=True)
class Bound:
    """`> 0`, `>= 1`, `< 1` or `<= 10` beside a number's type."""

    sign: str
    limit: float

    @property
    def words(self) -> str:
        return f"{_BOUNDS[self.sign][0]} {self.limit:g}"

    @property
    def example(self) -> str:
        """A number that holds, where the others allow it."""
        return f"{self.limit + {'>': 1, '<': -1}.get(self.sign, 0):g}"

    def holds(self, number: float) -> bool:
        return bool(_BOUNDS[self.sign][1](number, self.limit))


def bounds(marks: Iterable[object]) -> list[Bound]:
    signs = [mark.partition(" ") for mark in marks if isinstance(mark, str)]
    return [Bound(sign, float(limit)) for sign, _, limit in signs if sign in _BOUNDS]


def forms(marks: Iterable[object]) -> list[str]:
    return [mark for mark in marks if isinstance(mark, str) and mark in FORMS]


# The types a dataclass may use in a document, told apart and named for people. Standard library only.


NOTHING = type(None)
_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Any: "anything"}
_TEXT_FORMS = {
    Accelerator: "an accelerator such as T4:1",
    Cadence: "how often: 10m, 500 steps or 5 epochs",
    Secret: "a reference to a secret",
}


class Key(NamedTuple):
    """One key of a mapping that is read as a dataclass."""

    name: str  # as it is typed: `as` for the field `as_`
    field: Field[Any]
    type: Any

    @property
    def recorded(self) -> bool:
        """Whether only records have it, never a job file."""
        return bool(self.field.metadata.get("key") == RECORDED)

    @property
    def required(self) -> bool:
        return self.field.default is MISSING and self.field.default_factory is MISSING

    def default(self) -> Any:
        if self.field.default_factory is not MISSING:
            return self.field.default_factory()
        return self.field.default


RECORDED = "recorded"  # `metadata={"key": RECORDED}`: what former versions recorded and nobody types
_known_keys: dict[type[Any], dict[str, Key]] = {}  # resolving annotations is slow, and classes do not change


def keys_of(cls: Any) -> dict[str, Key]:
    """The keys a mapping may have where the dataclass `cls` is expected."""
    return {name: key for name, key in recorded_keys_of(cls).items() if not key.recorded}


def recorded_keys_of(cls: Any) -> dict[str, Key]:
    """The keys a record of the dataclass `cls` may have: those of job files, and those that only records have."""
    if cls not in _known_keys:
        hints = get_type_hints(cls, include_extras=True)
        found = [each for each in fields(cls) if each.init and each.metadata.get("key", True)]
        keys = [Key(each.name.rstrip("_"), each, hints[each.name]) for each in found]
        _known_keys[cls] = {key.name: key for key in keys}
    return _known_keys[cls]


def unmarked(annotation: Any) -> tuple[Any, tuple[object, ...]]:
    """The type and its marks."""
    if get_origin(annotation) is Annotated:
        return get_args(annotation)[0], annotation.__metadata__
    return annotation, ()


def union_members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; of anything else, itself."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def is_list(annotation: Any) -> bool:
    return get_origin(annotation) in (tuple, list)


def is_mapping(annotation: Any) -> bool:
    return get_origin(annotation) in (dict, Mapping)


def is_collection(annotation: Any) -> bool:
    """Something whose empty form and null mean the same: left out."""
    return is_list(annotation) or is_mapping(annotation) or is_dataclass(annotation)


def described(annotation: Any) -> str:
    """What must be written, in words: `a whole number, at least 1, or 'auto'`."""
    kind, extra = unmarked(annotation)
    members = [member for member in union_members(kind) if member is not NOTHING]
    if len(members) > 1:
        return ", or ".join(map(described, members))
    if members != [kind]:
        return described(members[0])
    if get_origin(kind) is Literal:
        return " or ".join(f"'{choice}'" if isinstance(choice, str) else str(choice) for choice in get_args(kind))
    if is_list(kind):
        return "a list"
    named = [FORMS[mark].words for mark in forms(extra)]
    limits = [bound.words for bound in bounds(extra)]
    name = named[0] if named else _NAMES.get(kind) or _TEXT_FORMS.get(kind, "a mapping of keys and values")
    return " and ".join([f"{name}, {limits[0]}" if limits else name, *limits[1:]])


def example(annotation: Any) -> str:
    """Something that could be written."""
    kind, extra = unmarked(annotation)
    members = [member for member in union_members(kind) if member is not NOTHING]
    if len(members) > 1:
        return " or ".join(map(example, members))
    if get_origin(members[0]) is Literal:
        return str(get_args(members[0])[0])
    if is_list(members[0]):
        return "[…]"
    limits = [bound.example for bound in bounds(extra)]
    simple = {bool: "true", int: "1", float: "0.5", str: "text", Accelerator: "T4:1", Cadence: "10m"}
    return limits[0] if limits else simple.get(members[0], "{…}")
