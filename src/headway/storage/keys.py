"""Which names a store accepts: those that mean the same on every store, and that stay below its URL."""

from __future__ import annotations

from headway.errors import StoreError

TEMPORARY = ".headway-tmp-"  # a file being written; a crash may leave one behind, and no listing shows it
LOCK = ".headway-lock"  # what conditional writers of a folder hold while they compare and rename


def checked_key(key: str) -> str:
    """The key itself, or StoreError for one that could leave the store or that some store would change."""
    fault = _fault(key)
    if fault:
        raise StoreError(
            f"{key!r} cannot name an object: {fault}", fix="use a relative name such as events/a0001.jsonl"
        )
    return key


def checked_prefix(prefix: str) -> str:
    """A prefix is a key cut off anywhere, also in the middle of a name or after a slash."""
    folder, slash, begun = prefix.rpartition("/")
    if slash:
        checked_key(folder)
    checked_key("x" + begun)  # a name may begin with anything, also with the dots that are none by themselves
    return prefix


def in_key_order(key: str) -> bytes:
    """Object stores list by the bytes of the name; sorting by this gives the same order everywhere."""
    return key.encode("utf-8", "surrogateescape")


def is_hidden(name: str) -> bool:
    """True for a file name that belongs to the store itself and is no object."""
    return name.startswith((TEMPORARY, LOCK))


def can_be_listed(name: str) -> bool:
    """False for a file that no verb could reach: one of the store's own, or one with a name that no key can have."""
    return _fault(name) == ""


def checked_span(span: tuple[int, int]) -> tuple[int, int]:
    start, stop = span
    if not 0 <= start <= stop:
        raise ValueError(f"not a span of bytes: [{start}, {stop})")
    return start, stop


def _fault(key: str) -> str:
    if not key:
        return "it is empty"
    if key.startswith("/") or key.endswith("/"):
        return "it starts or ends with a slash"
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in key):
        return "it holds a control character"
    if "\\" in key:
        return "it holds a backslash, which Azure takes for a slash"
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in key):
        return "it is not valid Unicode"
    for part in key.split("/"):
        if part in ("", ".", ".."):
            return f"it has the part {part!r}, which could lead elsewhere"
        if is_hidden(part):
            return f"names that start with {TEMPORARY} or {LOCK} belong to the store"
    return ""
