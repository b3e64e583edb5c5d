"""What is deployed and where, as one value; and what a place would be asked for, as plain requests. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headway.core.errors import BadInput
from headway.packaging.reference import GOOGLE_PROJECT

LABEL = "headway-deployment"  # on everything that is made: `--down` finds it again without a database
IMAGE = "{IMAGE}"  # stands where the pushed image's digest will be
Place = Literal["cloud-run", "vertex"]
_REGION = re.compile(r"[a-z]+(?:-[a-z]+)+\d+")
_ACCOUNT = re.compile(r"[a-z0-9-]+@[a-z0-9.-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """One bundle in one place. `model` is where it is fetched from at the start; None: it is in the image."""

    to: Place
    name: str
    project: str
    region: str
    recipe: str
    image: str = IMAGE
    model: str | None = None
    machine: str = "n1-standard-4"  # Vertex AI
    cpus: int = 2  # Cloud Run
    memory_gib: int = 4
    accelerator: tuple[str, int] | None = None
    least: int = 0
    most: int = 3
    public: bool = False
    token: str | None = None  # the name of an entry in Secret Manager
    account: str | None = None

    def __post_init__(self) -> None:
        checks = (
            ("a project", self.project, GOOGLE_PROJECT, "--project my-project"),
            ("a region", self.region, _REGION, "--region us-central1"),
            ("a service account", self.account or "a@b", _ACCOUNT, "--service-account server@my-project.iam…"),
        )
        for what, value, pattern, fix in checks:
            if not pattern.fullmatch(value):
                raise BadInput(f"{value!r} is not {what} of Google Cloud", fix=fix)
        if not 0 <= self.least <= self.most or self.most < 1:
            raise BadInput(f"from {self.least} to {self.most} instances cannot be", fix="--min 0 --max 3")


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One call. `file` is its name where it is written down; `body` what is sent, with {NAMES} of what comes before."""

    file: str
    method: str
    url: str
    body: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """What it costs, in words for people and in numbers for programs."""

    idle_usd_per_hour: float  # while nobody asks
    busy_usd_per_hour: float  # while every instance works
    told: str
    missing: str = ""
    besides: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        if self.missing:
            return {"missing": self.missing}
        return {"idle_usd_per_hour": round(self.idle_usd_per_hour, 5),
                "busy_usd_per_hour": round(self.busy_usd_per_hour, 5), "told": self.told}  # fmt: skip


def service_name(text: str) -> str:
    """A bundle's name as Cloud Run, labels and image repositories take it."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"m-{plain}")[:40].rstrip("-") or "model"


def take_down(d: Deployment) -> str:
    """What to type to end it, and what it costs."""
    return f"headway deploy --down --to {d.to} --project {d.project} --region {d.region} --name {d.name}"
