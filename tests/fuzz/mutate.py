"""Bytes that are nearly right: what damage and a patient stranger look like. The same seed gives the same bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

_NUMBERS = (0, 1, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
_ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e308, float("nan"), float("inf"), 2**70, "", "\0", "../../x", "/etc/passwd", "\ud800"),
    *([], {}, [[]], {"": {}}, "x" * 300, [0] * 50),
)
_DEEP = 100_000


def mutations(samples: list[bytes], seed: int) -> Iterator[bytes]:
    """Without end. Samples that are JSON are also changed as values, which bytes alone rarely reach."""
    dice = random.Random(seed)
    yield from (b"", b"\0", b"[" * _DEEP, b'{"a":' * _DEEP, b"null", b"[]", b"{}", b"NaN", b"\xff\xfe")
    while True:
        sample = dice.choice(samples)
        yield _other_value(sample, dice) if _is_json(sample) and dice.random() < 0.6 else _other_bytes(sample, dice)


def _is_json(sample: bytes) -> bool:
    return sample[:1] in (b"{", b"[") and b"\n{" not in sample


def _other_bytes(sample: bytes, dice: random.Random) -> bytes:
    body = bytearray(sample)
    for _ in range(dice.choice([1, 1, 2, 4, 16])):
        at = dice.randrange(len(body) + 1) if dice.random() < 0.6 else min(len(body), dice.randrange(64))
        act = dice.randrange(6)
        if act == 0 and at < len(body):
            body[at] ^= 1 << dice.randrange(8)
        elif act == 1:
            del body[at:]
        elif act == 2:
            del body[at : at + dice.choice([1, 2, 8, 100])]
        elif act == 3:
            body[at:at] = dice.randbytes(dice.choice([1, 4, 40]))
        elif act == 4:
            width = dice.choice([1, 2, 4, 8])
            number = dice.choice(_NUMBERS) % (1 << 8 * width)
            body[at : at + width] = number.to_bytes(width, dice.choice(["little", "big"]))
        else:
            other = dice.randrange(len(body) + 1)
            body[at:at] = body[other : other + dice.choice([4, 50, 500])]
    return bytes(body)


def _other_value(sample: bytes, dice: random.Random) -> bytes:
    """A JSON document with one to three of its values exchanged, left out or doubled."""
    value = json.loads(sample)
    for _ in range(dice.choice([1, 1, 2, 3])):
        value = _changed(value, dice)
    return json.dumps(value).encode()


def _changed(value: Any, dice: random.Random) -> Any:
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key = dice.choice(list(value))
        act = dice.randrange(8)
        if act == 0:
            return {name: item for name, item in value.items() if name != key}
        if act == 1:
            return {**value, dice.choice(["extra", "../x", "", key.upper()]): value[key]}
        return {**value, key: _changed(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.9:
        at = dice.randrange(len(value))
        if dice.random() < 0.3:
            return value[:at] + value[at + 1 :] if dice.random() < 0.5 else [*value, value[at]]
        return [*value[:at], _changed(value[at], dice), *value[at + 1 :]]
    if isinstance(value, str) and value and dice.random() < 0.4:
        return value[: dice.randrange(len(value))] + dice.choice(["", "0", "é", "/", "\n", ":"])
    return dice.choice(_ODD)
