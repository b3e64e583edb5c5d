"""Take secret values out of output, in every form that programs commonly print them in.

Forms: as they are; escaped as in JSON, repr() of text and of bytes, URLs, XML and HTML; in hexadecimal; in base64 at
any position, so that `Authorization: Basic` is covered; line by line; broken over lines; and the secret fields of JSON
documents, of `name = value` lines and of URLs. Compressed or encrypted output is not recognized.

Cost: output without a secret is compared in blocks of 8 and of 4 bytes with those of all forms, whatever their number.
"""

from __future__ import annotations

import base64
import html
import json
import re
import urllib.parse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

HIDDEN = b"***"
_MIN_LENGTH = 4  # redacting shorter values would hide ordinary words
_MIN_FIELD = 8  # a field of a structured secret, which nobody named as secret by itself
_MIN_AMBIENT = 12  # a variable of the environment: `test` and `minioadmin` are words
_MIN_ENCODED = 8  # characters of hexadecimal and base64
_MAX_ENCODED = 8 << 10  # bytes; larger values are looked for by their lines and fields in these forms
_MAX_HELD = 32 << 10
_WRAPPED = (76, 64)  # characters per line of base64, in MIME and in PEM
_MAX_BROKEN = 2048  # bytes of a value that is looked for over several lines


@dataclass(frozen=True, slots=True)
class _Block:
    """A unit of comparison. A form of `least` bytes contains a whole aligned block, wherever it is."""

    code: Literal["I", "Q"]
    size: int

    @property
    def least(self) -> int:
        return 2 * self.size - 1


_LONG, _SHORT = _Block("Q", 8), _Block("I", 4)

_SECRET_FIELD = re.compile(
    r"(?i)(?:key|secret|token|passw(?:or)?d|passphrase|credentials?|auth|sas|signature|connection_?string)(?:_id)?$"
)
_FIELD_LINE = re.compile(r"""(?m)(?:^|[;,{\s])["']?([\w.-]{2,60})["']?[ \t]*[=:][ \t]*["']?([^\s"',;{}]{8,})""")
_PEM_BORDER = re.compile(r"-----(?:BEGIN|END) [A-Z0-9 ]+-----")
_NETRC = re.compile(r"\bpassword\s+(\S{8,})")
_URL = re.compile(r"://[^\s:/@]*:([^\s/@]{4,})@")
_AMBIENT = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY(?:_ID)?|SECRET_KEY|PRIVATE_KEY|ACCOUNT_KEY|STORAGE_KEY|"
    r"SAS_KEY|SAS_TOKEN|CONNECTION_STRING|CREDENTIALS?|WEBHOOK(?:_URL)?)$"
)
# Files that the libraries of clouds and trackers read by themselves: a variable with the path, and the usual path.
_AMBIENT_FILES = (
    ("GOOGLE_APPLICATION_CREDENTIALS", "~/.config/gcloud/application_default_credentials.json"),
    ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ("HF_TOKEN_PATH", "~/.cache/huggingface/token"),
    ("NETRC", "~/.netrc"),
)
# Between two halves of a value that was broken over lines, by a terminal's width or by pprint.
_LINE_BREAK = re.compile(rb"""\\?["']?[ \t]*\r?\n(?:[ \t]*[bru]?["'])?[ \t]*""")
_ENDS = b"\\\"' \t\r\n"
_BREAK = b"(?:" + _LINE_BREAK.pattern + b")?"


class Redactor:
    """Replaces secret values by `***` in bytes. Two of them with the same values do the same."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        parts = {part for value in values for part in secret_parts(value)}
        forms = {form for part in parts for form in _forms(part)}
        lines = {part.encode("utf-8", "surrogatepass") for part in parts if "\n" not in part}
        self._breakable = sorted(line for line in lines if 2 * _SHORT.least <= len(line) <= _MAX_BROKEN)
        self._indexes = [
            _Index(_LONG, forms, self._breakable),
            _Index(
                _SHORT,
                (form for form in forms if len(form) < _LONG.least),
                (line for line in self._breakable if len(line) < 2 * _LONG.least),
            ),
        ]
        self._pieces = {
            line[at : at + _MIN_LENGTH] for line in self._breakable for at in range(len(line) - _MIN_LENGTH + 1)
        }
        self._tiny = [form for form in forms if len(form) < _SHORT.least]
        self.longest = min(max(map(len, forms), default=0), _MAX_HELD)

    def __call__(self, text: bytes) -> bytes:
        whole, broken = set(self._tiny), set[bytes]()
        for index in self._indexes:
            index.search(text, whole, broken)
        for form in sorted((form for form in whole if form in text), key=lambda form: (-len(form), form)):
            text = text.replace(form, HIDDEN)
        for line in broken:
            text = _broken_pattern(line).sub(HIDDEN, text)
        return text

    def held_from(self, text: bytes) -> int:
        """Return where the line begins that ends with the beginning of a value; the length of the text if none does.

        The rest of the value may be on the next line: the caller waits for it before it redacts both.
        """
        if text[-64:].rstrip(_ENDS)[-_MIN_LENGTH:] not in self._pieces or not text.endswith(b"\n"):
            return len(text)
        for line in self._breakable:
            start = text.rfind(line[:_MIN_LENGTH], max(0, len(text) - 2 * _MAX_BROKEN))
            seen = _LINE_BREAK.sub(b"", text[start:]) if start >= 0 else b""
            if seen and len(seen) < len(line) and line.startswith(seen):
                return text.rfind(b"\n", 0, start) + 1
        return len(text)


class _Index:
    """Finds which of many forms a text may contain, by its aligned blocks."""

    def __init__(self, block: _Block, forms: Iterable[bytes], breakable: Iterable[bytes]) -> None:
        self._block = block
        self._known: dict[int, tuple[set[bytes], set[bytes]]] = defaultdict(lambda: (set(), set()))
        for form in forms:
            if len(form) >= block.least:
                for at in range(block.size):
                    self._known[self._value(form, at)][0].add(form)
        for line in breakable:
            for at in range(len(line) - block.size + 1):
                self._known[self._value(line, at)][1].add(line)

    def search(self, text: bytes, whole: set[bytes], broken: set[bytes]) -> None:
        """Add the forms that may be in the text, and the lines of which a piece may be."""
        if not self._known:
            return
        blocks = memoryview(text)[: len(text) // self._block.size * self._block.size].cast(self._block.code)
        if self._known.keys().isdisjoint(blocks):
            return
        for value in self._known.keys() & set(blocks):
            whole |= self._known[value][0]
            broken |= self._known[value][1]

    def _value(self, form: bytes, at: int) -> int:
        return int(memoryview(form[at : at + self._block.size]).cast(self._block.code)[0])


@lru_cache(maxsize=256)
def _broken_pattern(line: bytes) -> re.Pattern[bytes]:
    return re.compile(_BREAK.join(re.escape(line[at : at + 1]) for at in range(len(line))))


def redact(text: str, values: Iterable[str]) -> str:
    """Replace the values in the text by ***, as `Redactor` does in bytes."""
    return Redactor(values)(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def ambient_values(env: Mapping[str, str]) -> list[str]:
    """Return the credentials that a process inherits: variables by their name, and files that libraries read.

    Values shorter than 12 characters are left out: redacting `test` would make logs unreadable.
    """
    values = [
        value for name, value in env.items() if _AMBIENT.search(name.upper()) and not value.startswith(("/", "~"))
    ]
    for variable, usual in _AMBIENT_FILES:
        values += _fields(_read(env.get(variable) or usual, env))
    if token := _read("~/.cache/huggingface/token", env).strip():
        values.append(token)
    return [value for value in values if len(value) >= _MIN_AMBIENT]


def _read(path: str, env: Mapping[str, str]) -> str:
    home = env.get("HOME", "")
    try:
        with Path(path.replace("~", home, 1) if path.startswith("~/") else path).open("rb") as file:
            return file.read(64 << 10).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


# The parts of a value that are secret by themselves


def secret_parts(value: str) -> Iterator[str]:
    """Yield a secret's value, its lines, and its fields if it is a document."""
    if len(value) < _MIN_LENGTH:
        return
    yield value
    yield from _fields(value)
    if not _is_json(value):
        lines = [line.strip() for line in value.splitlines()]
        yield from (line for line in lines if len(line) >= _MIN_LENGTH and not _PEM_BORDER.fullmatch(line))


def _fields(value: str) -> list[str]:
    """Return the secret fields of a JSON document, of `name = value` lines, of .netrc or of a URL."""
    try:
        document = json.loads(value) if _is_json(value) else None
    except (ValueError, RecursionError):
        document = None
    if document is not None:
        found = list(_json_fields(document))
    else:
        found = [text for name, text in _FIELD_LINE.findall(value) if _SECRET_FIELD.search(name)]
        found += [*_NETRC.findall(value), *(urllib.parse.unquote(text) for text in _URL.findall(value))]
    lines = [line.strip() for text in found for line in text.splitlines() if "\n" in text]
    return [text for text in (*found, *lines) if len(text) >= _MIN_FIELD and not _PEM_BORDER.fullmatch(text)]


def _is_json(value: str) -> bool:
    return value.lstrip()[:1] in ("{", "[")


def _json_fields(document: Any, name: str = "") -> Iterator[str]:
    if isinstance(document, Mapping):
        for key, item in document.items():
            yield from _json_fields(item, str(key))
    elif isinstance(document, list):
        for item in document:
            yield from _json_fields(item, name)
    elif isinstance(document, str) and _SECRET_FIELD.search(name) and not document.startswith(("https://", "http://")):
        yield document


# The forms of one part


def _forms(part: str) -> set[bytes]:
    plain = part.encode("utf-8", "surrogatepass")
    texts = {part, *_escaped(part), *_quoted(part, plain)}
    forms = {text.encode("utf-8", "surrogatepass") for text in texts}
    forms |= {json.dumps(text)[1:-1].encode() for text in texts}  # a printed form inside a JSON record
    if len(plain) <= _MAX_ENCODED:
        forms |= {form for form in _encoded(plain) if len(form) >= _MIN_ENCODED}
    return {form for form in forms if len(form) >= _MIN_LENGTH}


def _escaped(part: str) -> Iterator[str]:
    yield json.dumps(part)[1:-1]
    yield json.dumps(part, ensure_ascii=False)[1:-1]
    yield repr(part)[1:-1]
    yield repr(part + "'")[1:-2]  # with the other quotation marks
    yield ascii(part)[1:-1]
    plain = part.encode("utf-8", "surrogatepass")
    yield repr(plain)[2:-1]
    yield repr(plain + b"'")[2:-2]
    for quoted in (html.escape(part), html.escape(part, quote=False)):
        yield quoted
        yield quoted.replace("&#x27;", "&#39;").replace("&quot;", "&#34;")
        yield quoted.replace("&#x27;", "&apos;")
        yield quoted.replace("\n", "&#10;")


def _quoted(part: str, plain: bytes) -> Iterator[str]:
    for safe in ("", "/", "/:", "~()*!.'", "/:@!$&'()*+,;="):
        quoted = urllib.parse.quote(plain, safe=safe)
        yield quoted
        yield re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), quoted)
        yield quoted.replace("%20", "+")


def _encoded(plain: bytes) -> Iterator[bytes]:
    yield plain.hex().encode()
    yield plain.hex().upper().encode()
    for shift in range(3):
        body = base64.b64encode(b"\0" * shift + plain)
        # The characters at both ends also hold bits of what stands before and after the value.
        start = (shift * 8 + 5) // 6
        end = (shift + len(plain)) * 8 // 6
        for text in (body, body.translate(bytes.maketrans(b"+/", b"-_"))):
            yield text[start:end]
            if not shift:
                for width in _WRAPPED:
                    yield from (text[at : at + width] for at in range(0, end, width) if len(text) > width)
