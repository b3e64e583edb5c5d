"""Read multipart forms from a body in memory, in time that grows with its length whatever it holds.

Parsers for streams look at each byte, in Python: a body made for that holds up the server for seconds.
"""

from __future__ import annotations

from typing import Final

from python_multipart.multipart import parse_options_header

from headway.artifacts.predictor import PredictionError, bad_request

_MOST_PARTS: Final = 24
_MOST_HEADERS: Final = 8_192  # bytes of a part's headers


def parse_form(content_type: str, body: bytes) -> list[tuple[str, str | bytes]]:
    """Return the form's fields in order: text, or bytes where a part has a file name or is not UTF-8 text."""
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not boundary or len(boundary) > 200:
        raise bad_request("the form is invalid: its boundary is missing")
    delimiter = b"\r\n--" + boundary
    if body.count(delimiter) > _MOST_PARTS + 1:
        raise PredictionError(413, f"the form has more than {_MOST_PARTS} parts")
    _, *parts = (b"\r\n" + body).split(delimiter)
    if not parts or not parts[-1].startswith(b"--"):
        raise bad_request("the form is invalid: its end is missing")
    return [_part(part) for part in parts[:-1]]


def _part(part: bytes) -> tuple[str, str | bytes]:
    head, found, content = part.partition(b"\r\n\r\n")
    if not found or not head.startswith(b"\r\n") or len(head) > _MOST_HEADERS:
        raise bad_request("the form is invalid: a part has no headers")
    for line in head[2:].split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            return _named(value.strip(), content)
    raise bad_request("the form is invalid: a part has no Content-Disposition")


def _named(disposition: bytes, content: bytes) -> tuple[str, str | bytes]:
    kind, options = parse_options_header(disposition)
    if kind != b"form-data" or b"name" not in options:
        raise bad_request("the form is invalid: a part has no name")
    name = options[b"name"].decode("utf-8", "replace")
    if b"filename" in options:
        return name, content
    try:
        return name, content.decode()
    except UnicodeDecodeError:
        return name, content
