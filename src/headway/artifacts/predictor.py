"""What a recipe gives a server: which inputs it takes, and answers for many of them at once. Imports nothing heavy.

A recipe's service is built from a bundle. The server reads requests, holds the limits and makes the batches; the
service sees pixels and text that are already checked, and knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from importlib import import_module
from typing import Any, Final, Literal, Protocol

from headway.bundle.format import Bundle
from headway.core.errors import BadBundle

# What a client did wrong, or the server could not do, as JSON problem details (RFC 9457).


MEDIA_TYPE = "application/problem+json"


class PredictionError(Exception):
    """A request that is answered with a problem instead of predictions."""

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


Instance = Mapping[str, Any]  # field -> pixels or text, checked
Answer = dict[str, Any]  # plain JSON


class Service(Protocol):
    """A model that answers. `answer` runs in one thread at a time; `prepare` may run in several."""

    @property
    def fields(self) -> tuple[Field, ...]: ...

    def prepare(self, instance: Instance) -> Any:
        """Everything that can be done for one input alone: resizing, splitting into subwords."""
        ...

    def answer(self, prepared: Sequence[Any], *, explain: bool) -> list[Answer]:
        """One answer an input, in order. `explain` adds what the try-out page shows, such as attention maps."""
        ...


# Recipe -> "module:Class", made from a Bundle. Sorted; each is imported only when it serves.
SERVICES: Final[dict[str, str]] = {
    "captioning": "headway.recipes.captioning.inference:CaptionService",
    "classification": "headway.recipes.classification.inference:ClassService",
    "grading": "headway.recipes.grading.inference:GradeService",
    "translation": "headway.recipes.translation.inference:TranslationService",
}


def service_of(bundle: Bundle) -> Service:
    if bundle.recipe not in SERVICES:
        raise BadBundle(
            f"it is of the recipe {bundle.recipe!r}, which this Headway cannot serve",
            where=bundle.url,
            fix="use the Headway that exported it, or a newer one",
        )
    module, _, name = SERVICES[bundle.recipe].partition(":")
    made: Service = getattr(import_module(module), name)(bundle)
    return made
