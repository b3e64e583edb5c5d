"""A run's checkpoints: what was saved, what is still there, and whether it is what was written."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from headway.errors import NotThere
from headway.runfolder import RunFolder, checkpoint_folder

_SPAN: Final = 8 << 20


def checkpoints(folder: RunFolder, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every one that was ever committed, oldest first; `kept` where the run's own record still has it."""
    kept = {each["step"]: each for each in folder.kept_checkpoints()}
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["kind"] == "checkpoint":
            told = {key: event.get(key) for key in ("step", "names", "bytes", "seconds", "stall_ms", "attempt", "time")}
            record = kept.get(event["step"])
            now = {"names": record.get("names"), "score": record.get("score")} if record else {}
            found[event["step"]] = {**told, **now, "kept": record is not None}
    return [found[step] for step in sorted(found)]


def verified(folder: RunFolder, step: int) -> dict[str, Any]:
    """Read all of it and compare with what its manifest vouches for. `wrong` is empty where it is whole."""
    began = time.monotonic()
    place = checkpoint_folder(step)
    wrong = list(_wrong(folder, place))
    return {"step": step, "wrong": wrong, "seconds": round(time.monotonic() - began, 3)}


def _wrong(folder: RunFolder, place: str) -> Iterator[str]:
    from headway.runtime.encoding import Damaged
    from headway.runtime.records import unsealed

    try:
        manifest = unsealed(folder.store.read(f"{place}/manifest.json"), "manifest.json")
    except NotThere:
        yield "it has been removed"
        return
    except Damaged as error:
        yield str(error)
        return
    state = manifest["state"]
    for name, told in {**manifest["files"], state["name"]: state}.items():
        try:
            size = folder.store.stat(f"{place}/{name}").size
        except NotThere:
            yield f"{name} is missing"
            continue
        if size != told["bytes"]:
            yield f"{name} has {size:,} bytes and should have {told['bytes']:,}"
        elif _sha256(folder, f"{place}/{name}", size) != told["sha256"]:
            yield f"{name} is not what was written: its checksum differs"


def _sha256(folder: RunFolder, key: str, size: int) -> str:
    digest = hashlib.sha256()
    for start in range(0, size, _SPAN):
        digest.update(folder.store.read(key, (start, min(size, start + _SPAN))))
    return digest.hexdigest()
