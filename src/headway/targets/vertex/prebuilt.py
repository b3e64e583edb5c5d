"""Google's own images for training, which `mode: package` runs in: what is in each, and until when it can be had.

A dated table: Google publishes no list that a program can read. `image.uri` names another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from headway.errors import Problem

AS_OF = date(2026, 11, 15)
OLDEST_PYTHON, OLDEST_TORCH = (3, 10), (2, 4)
_URI = re.compile(
    r"(?P<where>us|europe|asia)-docker\.pkg\.dev/vertex-ai/training/"
    r"(?P<framework>pytorch|tf|sklearn|xgboost)-(?P<device>gpu|cpu|xla|tpu)\.(?P<version>\d+-\d+)(?:\.py(?P<python>\d+))?"
    r"(?::[\w.-]+)?(?:@sha256:[0-9a-f]{64})?"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prebuilt:
    """One image. `ends` is the last day on which Google promises that it can be had."""

    name: str
    torch: tuple[int, int] | None
    python: tuple[int, int]
    ends: date | None = None


IMAGES = {
    image.name: image
    for image in (
        Prebuilt(name="pytorch-gpu.2-4.py310", torch=(2, 4), python=(3, 10), ends=date(2026, 7, 24)),
        Prebuilt(name="pytorch-xla.2-4.py310", torch=(2, 4), python=(3, 10), ends=date(2026, 7, 24)),
        Prebuilt(name="pytorch-gpu.1-13.py310", torch=(1, 13), python=(3, 10), ends=date(2025, 5, 15)),
        Prebuilt(name="pytorch-xla.1-13.py310", torch=(1, 13), python=(3, 10), ends=date(2025, 5, 15)),
    )
}
NEWEST = {"gpu": "pytorch-gpu.2-4.py310", "cpu": "pytorch-xla.2-4.py310"}  # XLA's image is the one for CPUs since 2.0


def default_uri(*, accelerated: bool, region: str) -> str:
    """The newest image with PyTorch, from the registry nearest to the region."""
    return f"{_near(region)}-docker.pkg.dev/vertex-ai/training/{NEWEST['gpu' if accelerated else 'cpu']}:latest"


def of_uri(uri: str) -> Prebuilt | None:
    """What is known of an image, by its name; None where it is not one of Google's for training."""
    found = _URI.fullmatch(uri)
    if found is None:
        return None
    version = tuple(int(part) for part in found["version"].split("-"))
    digits = found["python"] or "37"  # those without a Python in their name are the oldest
    name = f"{found['framework']}-{found['device']}.{found['version']}" + (f".py{digits}" if found["python"] else "")
    known = IMAGES.get(name)
    if known is not None:
        return known
    torch = (version[0], version[1]) if found["framework"] == "pytorch" else None
    return Prebuilt(name=name, torch=torch, python=(int(digits[0]), int(digits[1:])))


def problems(uri: str) -> Iterator[Problem]:
    """An image that Headway cannot run in."""
    image = of_uri(uri)
    newest = f"leave image.uri out: {NEWEST['gpu']} is the newest; or mode: container"
    if image is None:
        what = f"a package runs in one of Google's images for training, and {uri} is none of them"
        yield Problem(what=what, where="image.uri", fix="mode: container for an image of your own; or leave `uri` out")
    elif image.python < OLDEST_PYTHON:
        what = f"{image.name} is too old: it has Python {_dotted(image.python)}, and Headway needs 3.10"
        yield Problem(what=what, where="image.uri", fix=newest)
    elif image.torch is not None and image.torch < OLDEST_TORCH:
        what = f"{image.name} is too old: it has torch {_dotted(image.torch)}, and Headway needs 2.4"
        yield Problem(what=what, where="image.uri", fix=newest)


def notes(uri: str, today: date) -> Iterator[str]:
    image = of_uri(uri)
    if image is None:
        return
    if image.name not in IMAGES:
        yield f"image: {image.name} is not in the table of {AS_OF}; Vertex AI says whether it can be had"
    elif image.ends is not None and image.ends < today:
        yield (
            f"image: {image.name} is past its end ({image.ends}): Google mends it no more and may remove it; "
            "mode: container with an image of your own is the way out"
        )
    elif image.ends is not None:
        yield f"image: {image.name} can be had until {image.ends}"


def _near(region: str) -> str:
    continent = region.partition("-")[0]
    return continent if continent in ("europe", "asia") else "asia" if continent == "australia" else "us"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
