"""What a client did wrong, or the server could not do, as JSON problem details (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

MEDIA_TYPE = "application/problem+json"


class Refusal(Exception):
    """A request that is answered with a problem instead of predictions."""

    def __init__(self, status: int, detail: str, *, at: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.at = status, detail, at
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        told = {"type": "about:blank", "title": HTTPStatus(self.status).phrase, "status": self.status}
        return {**told, "detail": self.detail, **({"pointer": self.at} if self.at else {})}


def bad_request(detail: str, at: str = "") -> Refusal:
    return Refusal(400, detail, at=at)
