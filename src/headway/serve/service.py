"""What a recipe gives a server: which inputs it takes, and answers for many of them at once. Imports nothing heavy.

A recipe's service is built from a bundle. The server reads requests, holds the limits and makes the batches; the
service sees pixels and text that are already checked, and knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Literal, Protocol

from headway.bundle import Bundle
from headway.errors import BadBundle


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
    "captioning": "headway.recipes.captioning.service:CaptionService",
    "classification": "headway.recipes.classification.service:ClassService",
    "grading": "headway.recipes.grading.service:GradeService",
    "translation": "headway.recipes.translation.service:TranslationService",
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
