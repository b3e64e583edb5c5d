"""What `headway eval --data` names: prepared data as it is, or a splits.json whose pictures are prepared for it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final

from headway.errors import BadInput, NotThere
from headway.spec.model import Data, Source
from headway.storage import fetch_file, local_path, open_store

PICTURES: Final = "pictures"  # where those of a splits.json lie while they are prepared
_SIDES: Final = ("front", "back")
_AT_ONCE: Final = 16  # pictures fetched at the same time
_ALIASES: Final = {"val": ("val", "valid", "validation", "dev"), "test": ("test", "testing"), "train": ("train",)}


@contextmanager
def named_data(data: str | None, root: str | None, split: str, config: Any, *, otherwise: Data) -> Iterator[Data]:
    """The data to read `split` from; where none is named, `otherwise`. Prepared pictures are gone afterwards."""
    if data is None:
        yield otherwise
    elif not data.endswith(".json"):
        if root is not None:
            raise BadInput("--root goes with a splits.json, and this is a folder", where=data, fix="leave out --root")
        yield _only(data, split)
    else:
        with tempfile.TemporaryDirectory(prefix="headway-eval-") as folder:
            yield _only(_prepared(data, root, split, config, Path(folder)), split)


def _only(source: str, split: str) -> Data:
    sources = (Source(source=source, split=split),)
    return Data(train=sources, val=sources, test=sources)


def _prepared(data: str, root: str | None, split: str, config: Any, folder: Path) -> str:
    """Whole pictures, squashed to the square that the model sees."""
    from headway.data.prepare import Wishes, prepare

    entries = _entries(data, split)
    base = root or data.rpartition("/")[0] or "."
    (folder / "source").mkdir()
    keys = {path: _key(path, base) for entry in entries for path in _named(entry)}
    _bring(set(keys.values()), base, folder / "source" / PICTURES)
    rows = [_moved(entry, keys) for entry in entries]
    (folder / "source" / "splits.json").write_text(json.dumps({split: rows}))
    to = str(folder / "shards")
    side = int(getattr(config, "side", 224))
    prepare(str(folder / "source"), to, size=side, encoding="raw", workers=1, wishes=Wishes(fit="squash"))
    return to


def _entries(data: str, split: str) -> list[Any]:
    parent, _, name = data.rpartition("/")
    try:
        found = json.loads(open_store(parent or ".").read(name))
    except NotThere:
        raise BadInput(f"{data} does not exist", fix="check the path") from None
    except ValueError as error:
        raise BadInput(f"not JSON: {error}", where=data) from None
    listed = [found[name] for name in _ALIASES[split] if isinstance(found, dict) and name in found]
    if not listed or not isinstance(listed[0], list) or not listed[0]:
        known = ", ".join(found) if isinstance(found, dict) else "none"
        raise BadInput(f"{data} has no split {split!r}", fix=f"choose one of its own with --split: {known}")
    return listed[0]


def _named(entry: Any) -> list[str]:
    """The pictures of an entry, as it names them."""
    found = [entry.get(side) for side in _SIDES] if isinstance(entry, dict) else []
    return [path for path in found if isinstance(path, str)]


def _moved(entry: Any, keys: Mapping[str, str]) -> Any:
    """The entry with its pictures where they were brought to. Preparing says what else is wrong with it."""
    return (
        entry
        if not _named(entry)
        else {
            name: f"{PICTURES}/{keys[value]}" if name in _SIDES and isinstance(value, str) else value
            for name, value in entry.items()
        }
    )


def _bring(keys: Iterable[str], base: str, to: Path) -> None:
    """Linked where they lie here, else fetched, many at once. What is missing stays missing: preparing reports it."""
    here = local_path(base)

    def bring(key: str) -> None:
        place = to / key
        place.parent.mkdir(parents=True, exist_ok=True)
        if here is None:
            with suppress(NotThere):
                fetch_file(open_store(base), key, place)
        elif (here / key).is_file():
            place.symlink_to((here / key).resolve())

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(bring, sorted(keys)))


def _key(path: str, base: str) -> str:
    key = _relative(path, base)
    if ".." in PurePosixPath(key).parts or key.startswith("/"):
        raise BadInput(f"{path!r} leads outside of {base}", fix="say where the pictures are with --root")
    return key


def _relative(path: str, base: str) -> str:
    """Other tools write whole paths: accepted where they lie below the root."""
    for start in (f"{base.rstrip('/')}/", f"{local_path(base)}/"):
        if path.startswith(start):
            return path[len(start) :]
    return path
