"""Answers of a model that writes text, piece by piece: as server-sent events, and as OpenAI's completions."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from headway.artifacts.predictor import PredictionError, bad_request


@runtime_checkable
class StreamingService(Protocol):
    """A service that can answer one instance piece by piece."""

    streams: bool

    def stream(self, prepared: Any) -> Iterator[str]: ...


def can_stream(service: object) -> bool:
    return isinstance(service, StreamingService) and service.streams


async def events(pieces: AsyncIterator[str]) -> AsyncIterator[bytes]:
    """Yield an event per piece, and one at the end with the whole text or the error."""
    text = ""
    try:
        async for piece in pieces:
            text += piece
            yield _event({"piece": piece})
        yield _event({"text": text, "done": True})
    except Exception as error:  # noqa: BLE001 - the answer has begun: the error becomes its last event
        yield _event({"error": _words(error), "done": True})


async def completion_events(pieces: AsyncIterator[str], model: str) -> AsyncIterator[bytes]:
    """Yield the events of OpenAI's completions API."""
    head = _head(model)
    try:
        async for piece in pieces:
            yield _event({**head, "choices": [_choice(piece, None)]})
        yield _event({**head, "choices": [_choice("", "stop")]})
    except Exception as error:  # noqa: BLE001 - the answer has begun: the error becomes its last event
        yield _event({"error": {"message": _words(error), "type": "server_error"}})
    yield b"data: [DONE]\n\n"


def completion(text: str, model: str) -> dict[str, Any]:
    return {**_head(model), "choices": [_choice(text, "stop")]}


def instance_of_completion(body: Any, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the instance of a completions request; `fields` are the model's inputs with their kinds.

    `prompt` becomes the text input; other parameters count where the model has an input of that name.
    """
    texts = [name for name, kind in fields.items() if kind == "text"]
    if len(texts) != 1:
        raise PredictionError(404, "this model does not complete a text; /docs lists the paths")
    if not isinstance(body, dict) or not isinstance(body.get("prompt"), str):
        raise bad_request('the body must be an object with a text "prompt"', "/prompt")
    given = {name: body[name] for name in fields if name != "prompt" and body.get(name) is not None}
    return {**given, texts[0]: body["prompt"]}


def _head(model: str) -> dict[str, Any]:
    return {
        "id": f"cmpl-{uuid.uuid4().hex[:24]}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
    }


def _choice(text: str, reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "finish_reason": reason, "logprobs": None}


def _event(value: Any) -> bytes:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


def _words(error: Exception) -> str:
    return error.detail if isinstance(error, PredictionError) else "the model failed; see the server's log"
