"""What the marks in `model` mean: the pattern a text must match, and how to say it to a person.

Shared by the reader and the JSON Schema, so that both refuse the same.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass

from headway.spec import units

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
    "duration": Form(units.DURATION_PATTERN, "a duration", "90s, 10m, 8h, 2d or 1h30m"),
    "size": Form(units.SIZE_PATTERN, "a size", "512MB, 30GB, 1TB or 30GiB"),
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
        rf"^{_SLASHES_MISSING}(?!(?!gs:|s3:|az:|file:|memory:)[A-Za-z][A-Za-z0-9+.-]+://).*$",
        "a folder or file, or a gs://, s3:// or az:// URL",
        "gs://bucket/runs/captions-1",
    ),
    "local folder": Form(
        rf"^{_SLASHES_MISSING}(?![A-Za-z][A-Za-z0-9+.-]+://).*$", "a folder of the machine", "/data/cache"
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
