"""A cluster's API that says what a test tells it to, and nothing else: for what a real one cannot be made to show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

from headway.targets.kubernetes.client import Client, Forbidden, NotFound, Object

Answer = Object | type[NotFound] | type[Forbidden]


@dataclass
class Answering(Client):
    """`answers` by path; any other path is not there. Requests and patches are recorded, access reviews answered."""

    answers: dict[str, Any] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)  # "verb resource" that the user may not
    asked: list[tuple[str, str]] = field(default_factory=list)
    changes: dict[str, Object] = field(default_factory=dict)  # patches by path
    clock: float = 0.0

    def __call__(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Object | None = None
    ) -> Object:
        self.asked.append((method, path))
        self.date = formatdate(self.clock, usegmt=True)
        if path.endswith("/selfsubjectaccessreviews"):
            assert body is not None
            wanted = body["spec"]["resourceAttributes"]
            return {"status": {"allowed": f"{wanted['verb']} {wanted['resource']}" not in self.refused}}
        if method == "PATCH":
            assert body is not None
            self.changes[path] = body
            return {}
        if method == "DELETE":
            self.answers.pop(path, None)
            return {}
        answer = self.answers.get(path, NotFound)
        if isinstance(answer, type):
            raise answer(f"{method} {path}: {answer.__name__}")
        found: Object = answer
        return found

    def lines(self, path: str, *, query: Mapping[str, str] | None = None) -> Iterator[str]:
        words = self.answers.get(path + ("?previous" if query and query.get("previous") else ""))
        if words is None:
            raise NotFound(f"GET {path}: not there")
        return iter(list(words))
