"""How much one client may ask for at once. All of it is refused before it costs anything."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    body: int = 20_000_000  # bytes of a request
    pixels: int = 40_000_000  # of a picture, as its header claims, before it is decoded
    instances: int = 64  # in a request
    text: int = 5_000  # characters
    batch: int = 32  # instances given to the model at once
    queue: int = 256  # instances that wait; more are refused with 429
    seconds: float = 30.0  # until a request is answered with 504
