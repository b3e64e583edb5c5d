"""The interface between recipes and the server: input fields, batched answers and errors. Imports nothing heavy.

A recipe's Service is built from a bundle. The server parses requests, enforces limits and forms batches; the service
receives validated pixels and text, and knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from importlib import import_module
from typing import Any, Final, Literal, Protocol

from headway.bundle.format import Bundle
from headway.core.errors import BadBundle

MEDIA_TYPE = "application/problem+json"


class PredictionError(Exception):
    """An error response, as JSON problem details (RFC 9457): a bad request, or a failure of the server."""

    def __init__(self, status: int, detail: str, *, at: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.at = status, detail, at
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        told = {"type": "about:blank", "title": HTTPStatus(self.status).phrase, "status": self.status}
        return {**told, "detail": self.detail, **({"pointer": self.at} if self.at else {})}


def bad_request(detail: str, at: str = "") -> PredictionError:
    return PredictionError(400, detail, at=at)


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One input of a model: `picture` arrives as RGB pixels (height, width, 3) in uint8, `text` as str."""

    name: str
    kind: Literal["picture", "text"]
    summary: str
    required: bool = True


Instance = Mapping[str, Any]  # field name -> pixels or text, validated
Answer = dict[str, Any]  # plain JSON


class Service(Protocol):
    """A recipe's model behind the server. `answer` runs in one thread at a time; `prepare` may run in several."""

    @property
    def fields(self) -> tuple[Field, ...]: ...

    def prepare(self, instance: Instance) -> Any:
        """Do the work that concerns one input alone: resizing, splitting into subwords."""
        ...

    def answer(self, prepared: Sequence[Any], *, explain: bool) -> list[Answer]:
        """Return one answer per input, in order. `explain` adds what the demo page shows, such as attention maps."""
        ...


# Recipe -> "module:Class" of its service, constructed from a Bundle and imported on use. Sorted.
SERVICES: Final[dict[str, str]] = {
    "captioning": "headway.recipes.captioning.inference:CaptionService",
    "classification": "headway.recipes.classification.inference:ClassService",
    "grading": "headway.recipes.grading.inference:GradeService",
    "translation": "headway.recipes.translation.inference:TranslationService",
}


def service_of(bundle: Bundle) -> Service:
    if bundle.recipe not in SERVICES:
        raise BadBundle(
            f"this version of Headway cannot serve the recipe {bundle.recipe!r}",
            where=bundle.url,
            fix="use the version that exported it, or a newer one",
        )
    module, _, name = SERVICES[bundle.recipe].partition(":")
    made: Service = getattr(import_module(module), name)(bundle)
    return made
