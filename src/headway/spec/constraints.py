"""Interpret the annotations of the dataclasses in `model`: types, bounds and forms of text.

Shared by the reader and the JSON Schema, so that both refuse the same.
"""

from __future__ import annotations

import operator
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from headway.core.metric_sources import METRIC_SOURCES
from headway.plugins import STORES, TRACKERS
from headway.spec.model import Accelerator, Cadence, Secret
from headway.spec.units import DURATION_PATTERN, SIZE_PATTERN

SECRET_FORMS = "env:NAME, file:PATH, gcp-sm://NAME, aws-sm://NAME or k8s://SECRET/KEY"


@dataclass(frozen=True, slots=True)
class Form:
    """The pattern that a text must match, a description of it and an example."""

    pattern: str
    words: str
    example: str


SCHEMES = "gs:|s3:|az:|file:|memory:"  # of the stores that ship with Headway
# gs:/bucket, with a slash missing, would be a folder of that name. `storage.suggest_url` has the same schemes.
_SLASHES_MISSING = r"(?!(?:gs|gcs|s3|s3a|s3n|az|azure|abfs|abfss|adl|wasb|wasbs|file|mem|memory|http|https):(?!//))"

# At most 40 characters: a run's name adds a hash and a counter, and must not exceed the 63 of a Kubernetes name.
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
        rf"^{_SLASHES_MISSING}(?!(?!{SCHEMES})[A-Za-z][A-Za-z0-9+.-]+://).+$",
        "a folder, or a gs://, s3:// or az:// URL",
        "gs://bucket/runs",
    ),
    "source": Form(
        rf"^{_SLASHES_MISSING}(?!(?!{SCHEMES}|https?:)[A-Za-z][A-Za-z0-9+.-]+://).+$",
        "a folder, a gs://, s3://, az:// or https:// URL, or builtin:NAME",
        "gs://bucket/coco",
    ),
    "weights": Form(
        rf"^{_SLASHES_MISSING}(?!(?!{SCHEMES})[A-Za-z][A-Za-z0-9+.-]+://)[\s\S]*$",
        "a folder or file, or a gs://, s3:// or az:// URL",
        "gs://bucket/runs/captions-1",
    ),
    "local folder": Form(
        rf"^{_SLASHES_MISSING}(?![A-Za-z][A-Za-z0-9+.-]+://)[\s\S]*$", "a folder on the machine", "/data/cache"
    ),
    "absolute path": Form(r"^/.*$", "an absolute path", "/data"),
    "nfs export": Form(r"^[^/: ]+:/.*$", "SERVER:/EXPORT", "server:/export"),
    "module": Form(r"^[A-Za-z_][A-Za-z0-9_]*(?:[.][A-Za-z_][A-Za-z0-9_]*)*$", "a Python module", "src.train"),
    "model class": Form(
        r"^[A-Za-z_][A-Za-z0-9_]*(?:[.][A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
        "a class, as MODULE:CLASS",
        "src.serving:Grader",
    ),
    "project path": Form(
        r"^(?!/)(?!(?:.*/)?[.][.](?:/|$)).+$", "a path below the job file's folder", "configuration/key.json"
    ),
    "platform": Form(r"^linux/[a-z0-9]+(?:/v[0-9]+)?$", "a platform", "linux/amd64 or linux/arm64"),
    "metric source": Form(
        rf"^(?:{'|'.join(METRIC_SOURCES)}|[\s\S]{{0,500}}[(][?]P<[A-Za-z_][A-Za-z0-9_]*>[\s\S]{{1,500}})$",
        "a source of metrics, or a pattern with named groups",
        r"tensorboard, or 'loss[=: ]+(?P<loss>[-+0-9.e]+)'",
    ),
    "project file": Form(r"^(?!/)(?!(?:.*/)?[.][.](?:/|$)).+$", "a file below the job file's folder", "train.py"),
}

# Marks that change how a text is read, not which texts are allowed.
EXPANDED, AS_TYPED, PLACEHOLDERS = "env", "text", "placeholders"
TRACKER = "tracker"  # a name of a tracker, or a class as MODULE:CLASS
WORDS = "words"  # on a list of texts: one text is split as a shell would


LOCATIONS = ("location", "source", "weights")  # forms that may be URLs


def matches(mark: str, text: str) -> bool:
    if re.fullmatch(FORMS[mark].pattern, text) is not None:
        return True
    scheme = scheme_of(text) if mark in LOCATIONS else ""
    return bool(scheme) and scheme in STORES


def scheme_of(text: str) -> str:
    """Return the scheme of a URL; empty if the text is none."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://.", text)
    return found[1].lower() if found else ""


_BOUNDS = {
    ">": ("more than", operator.gt),
    ">=": ("at least", operator.ge),
    "<": ("less than", operator.lt),
    "<=": ("at most", operator.le),
}


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit in a number's annotation: `> 0`, `>= 1`, `< 1` or `<= 10`."""

    sign: str
    limit: float

    @property
    def words(self) -> str:
        return f"{_BOUNDS[self.sign][0]} {self.limit:g}"

    @property
    def example(self) -> str:
        """Return a number within this limit; other limits of the same field are not considered."""
        return f"{self.limit + {'>': 1, '<': -1}.get(self.sign, 0):g}"

    def holds(self, number: float) -> bool:
        return bool(_BOUNDS[self.sign][1](number, self.limit))


def bounds(marks: Iterable[object]) -> list[Bound]:
    signs = [mark.partition(" ") for mark in marks if isinstance(mark, str)]
    return [Bound(sign, float(limit)) for sign, _, limit in signs if sign in _BOUNDS]


def forms(marks: Iterable[object]) -> list[str]:
    return [mark for mark in marks if isinstance(mark, str) and mark in FORMS]


# Classify the types that dataclasses of a document may use, and describe them in words. Standard library only.


NOTHING = type(None)
_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Any: "anything"}
_TEXT_FORMS = {
    Accelerator: "an accelerator such as T4:1",
    Cadence: "how often: 10m, 500 steps or 5 epochs",
    Secret: "a reference to a secret",
}


class Key(NamedTuple):
    """One key of a mapping that is parsed into a dataclass."""

    name: str  # as users type it: `as` for the field `as_`
    field: Field[Any]
    type: Any

    @property
    def recorded(self) -> bool:
        """Whether the key occurs only in recorded plans and bundles, never in a job file."""
        return bool(self.field.metadata.get("key") == RECORDED)

    @property
    def omitted_by_default(self) -> bool:
        """Whether records leave it out where it has its default, so that plans of before keep their bytes."""
        return self.recorded or bool(self.field.metadata.get("key") == "optional")

    @property
    def required(self) -> bool:
        return self.field.default is MISSING and self.field.default_factory is MISSING

    def default(self) -> Any:
        if self.field.default_factory is not MISSING:
            return self.field.default_factory()
        return self.field.default


RECORDED = "recorded"  # `metadata={"key": RECORDED}`: a key in records of former versions that no job file may have
_known_keys: dict[type[Any], dict[str, Key]] = {}  # a cache: resolving annotations is slow, and classes do not change


def keys_of(cls: Any) -> dict[str, Key]:
    """Return the keys that a job file may have where the dataclass `cls` is expected."""
    return {name: key for name, key in recorded_keys_of(cls).items() if not key.recorded}


def recorded_keys_of(cls: Any) -> dict[str, Key]:
    """Return the keys that a record of the dataclass `cls` may have: those of job files, and those of records alone."""
    if cls not in _known_keys:
        hints = get_type_hints(cls, include_extras=True)
        found = [each for each in fields(cls) if each.init and each.metadata.get("key", True)]
        keys = [Key(each.name.rstrip("_"), each, hints[each.name]) for each in found]
        _known_keys[cls] = {key.name: key for key in keys}
    return _known_keys[cls]


def unmarked(annotation: Any) -> tuple[Any, tuple[object, ...]]:
    """Split an annotation into its type and its marks."""
    if get_origin(annotation) is Annotated:
        return get_args(annotation)[0], annotation.__metadata__
    return annotation, ()


def union_members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union; of any other type, the type itself."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def is_list(annotation: Any) -> bool:
    return get_origin(annotation) in (tuple, list)


def is_mapping(annotation: Any) -> bool:
    return get_origin(annotation) in (dict, Mapping)


def is_collection(annotation: Any) -> bool:
    """Whether the type is a collection, for which empty, null and left out mean the same."""
    kind = unmarked(annotation)[0]
    return is_list(kind) or is_mapping(kind) or is_dataclass(kind)


def described(annotation: Any) -> str:
    """Describe the values that an annotation allows: `a whole number, at least 1, or 'auto'`."""
    kind, extra = unmarked(annotation)
    members = [member for member in union_members(kind) if member is not NOTHING]
    if len(members) > 1:
        return ", or ".join(map(described, members))
    if members != [kind]:
        return described(members[0])
    if get_origin(kind) is Literal:
        return " or ".join(f"'{choice}'" if isinstance(choice, str) else str(choice) for choice in get_args(kind))
    if is_list(kind):
        return "a list, or one text" if WORDS in extra else "a list"
    if TRACKER in extra:
        return " or ".join([*(f"'{name}'" for name in TRACKERS), "a class as MODULE:CLASS"])
    named = [FORMS[mark].words for mark in forms(extra)]
    limits = [bound.words for bound in bounds(extra)]
    name = named[0] if named else _NAMES.get(kind) or _TEXT_FORMS.get(kind, "a mapping of keys and values")
    return " and ".join([f"{name}, {limits[0]}" if limits else name, *limits[1:]])


def example(annotation: Any) -> str:
    """Return an example of a value that the annotation allows."""
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
