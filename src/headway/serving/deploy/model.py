"""A deployment, the requests that create it, and its price, as plain values. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headway.core.errors import BadInput
from headway.packaging.reference import GOOGLE_PROJECT

LABEL = "headway-deployment"  # on everything created, so that `--down` finds it without a database
IMAGE = "{IMAGE}"  # placeholder for the pushed image's digest
Platform = Literal["cloud-run", "vertex"]
_REGION = re.compile(r"[a-z]+(?:-[a-z]+)+\d+")
_ACCOUNT = re.compile(r"[a-z0-9-]+@[a-z0-9.-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """One bundle on one platform. `model` is the URL it is fetched from at start; None if the image contains it."""

    to: Platform
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
    min_instances: int = 0
    max_instances: int = 3
    public: bool = False
    token: str | None = None  # name of a secret in Secret Manager
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
        if not 0 <= self.min_instances <= self.max_instances or self.max_instances < 1:
            given = f"--min {self.min_instances} --max {self.max_instances}"
            raise BadInput(f"{given} is not a valid range of instances", fix="--min 0 --max 3")


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One API call. `file` is its name when rendered to disk; `body` may hold {NAMES} of results of earlier calls."""

    file: str
    method: str
    url: str
    body: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """The price, as text and as numbers."""

    idle_usd_per_hour: float  # without requests
    busy_usd_per_hour: float  # with all instances busy
    text: str
    missing: str = ""
    besides: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        if self.missing:
            return {"missing": self.missing}
        return {"idle_usd_per_hour": round(self.idle_usd_per_hour, 5),
                "busy_usd_per_hour": round(self.busy_usd_per_hour, 5), "told": self.text}  # fmt: skip


def service_name(text: str) -> str:
    """Convert a bundle's name to one that is valid for Cloud Run, labels and image repositories."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"m-{plain}")[:40].rstrip("-") or "model"


def take_down(d: Deployment) -> str:
    """Return the command that removes the deployment and ends its cost."""
    return f"headway deploy --down --to {d.to} --project {d.project} --region {d.region} --name {d.name}"
