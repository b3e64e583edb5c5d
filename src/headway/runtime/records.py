"""Small JSON files of a checkpoint, written one way and read with suspicion."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from headway.foreign import json_of
from headway.runtime.encoding import Damaged
from headway.storage.base import Store


def encode_record(value: Any) -> bytes:
    return (json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def decode_record(body: bytes, key: str) -> dict[str, Any]:
    try:
        value = json_of(body)
    except ValueError as error:
        raise Damaged(f"{key} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise Damaged(f"{key} is damaged: not a record")
    return value


def sealed(record: dict[str, Any]) -> bytes:
    """The record with a checksum of its own, for a file that no other vouches for."""
    return encode_record({**record, "checksum": hashlib.sha256(encode_record(record)).hexdigest()})


def unsealed(body: bytes, key: str) -> dict[str, Any]:
    record = decode_record(body, key)
    checksum = record.pop("checksum", None)
    try:
        found = hashlib.sha256(encode_record(record)).hexdigest()
    except (ValueError, RecursionError):  # half a character, or deeper than we ever write: nothing of ours
        found = None
    if checksum is None or checksum != found:
        raise Damaged(f"{key} is not what was written: its checksum differs")
    return record


def read_record(store: Store, key: str) -> dict[str, Any]:
    """NotThere when it was never written, Damaged when it is not what was."""
    return decode_record(store.read(key), key)
