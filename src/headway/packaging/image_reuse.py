"""Tell a change of code from a change of what is installed, so that a change of code alone installs nothing again.

Where a run fetches its code by itself, it uses a pushed image with the same base, `setup` and requirements; an
environment on an ssh machine is named by its requirements.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from dataclasses import asdict
from pathlib import Path

from headway.core.platform import state_dir
from headway.packaging.code import archive_path
from headway.packaging.dockerfile import AnyImage, ImageSpec
from headway.storage import open_store

_CODE_FIELDS = ("code_sha256", "wheel", "wheel_sha256")  # the run brings these along
# Files that may say what to install: a change of any of them needs a new image.
_DEPENDENCY_FILES = (".txt", ".in", ".toml", ".lock", ".cfg", "setup.py")


def reusable(image: AnyImage) -> str | None:
    """Return a pushed image that differs from this one in code only, by its digest; None if there is none."""
    record = _record_path(image)
    try:
        uri = json.loads(record.read_bytes())["uri"] if record is not None else None
    except (OSError, ValueError, KeyError, TypeError):  # never pushed from here, or a damaged record
        return None
    return uri if isinstance(uri, str) and uri.startswith(f"{image.repository}@sha256:") else None


def record_push(image: AnyImage, uri: str) -> None:
    """Record on this machine that an image was pushed, under what it has installed."""
    record = _record_path(image)
    if record is not None:
        body = json.dumps({"uri": uri}, sort_keys=True) + "\n"
        open_store(str(record.parent)).write(record.name, body.encode())


def requirements_hash(code_sha256: str) -> str:
    """Return a hash of the files in the code that may say what to install.

    The hash of all code if that is not on this machine.
    """
    try:
        files = _dependency_files(archive_path(code_sha256))
    except (OSError, EOFError, zlib.error, tarfile.TarError):
        return code_sha256
    hashes = {name: hashlib.sha256(body).hexdigest() for name, body in files.items()}
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


def _record_path(image: AnyImage) -> Path | None:
    """Return where this machine records the image by its dependencies; None if its code is installed in it."""
    if not isinstance(image, ImageSpec) or image.repository is None or image.install:
        return None
    fields = {name: value for name, value in asdict(image).items() if name not in _CODE_FIELDS}
    text = json.dumps([fields, requirements_hash(image.code_sha256)], sort_keys=True)
    return state_dir() / "images" / f"dependencies-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _dependency_files(archive: Path) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive.read_bytes()))) as members:
        named = [(each.name, members.extractfile(each)) for each in members if each.name.endswith(_DEPENDENCY_FILES)]
        return {name: body.read() for name, body in named if body is not None}
