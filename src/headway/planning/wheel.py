"""Headway's own wheel, made from the installed package, so that every place runs the Headway that made the plan.

Nothing is ever installed by the name `headway` from an index.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from pathlib import Path

from headway.home import home
from headway.storage import open_store
from headway.version import __version__

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip can hold: times are not content


def wheel_path(name: str) -> Path:
    return home() / "wheels" / name


def own_wheel() -> tuple[str, str]:
    """Its file name, which carries a hash of its content, and its sha256. Built once for each content."""
    sources = _sources()
    digest = hashlib.sha256()
    for name, body in sources:
        digest.update(f"{name}\0{len(body)}\0".encode() + body)
    # A wheel's build tag must start with a digit.
    name = f"headway-{__version__}-0{digest.hexdigest()[:12]}-py3-none-any.whl"
    path = wheel_path(name)
    if not path.exists():
        open_store(str(path.parent)).write(name, _zip(sources))
    return name, hashlib.sha256(path.read_bytes()).hexdigest()


def _sources() -> list[tuple[str, bytes]]:
    package = Path(__file__).parents[1]
    found = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted((path.relative_to(package.parent).as_posix(), path.read_bytes()) for path in found)


def _zip(sources: list[tuple[str, bytes]]) -> bytes:
    from importlib.metadata import distribution

    info = f"headway-{__version__}.dist-info"
    metadata = distribution("headway").read_text("METADATA") or ""
    files = [
        *sources,
        (f"{info}/METADATA", metadata.encode()),
        (f"{info}/WHEEL", b"Wheel-Version: 1.0\nGenerator: headway\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
        (f"{info}/entry_points.txt", b"[console_scripts]\nheadway = headway.cli:main\n"),
    ]
    record = "".join(f"{name},sha256={_b64(body)},{len(body)}\n" for name, body in files) + f"{info}/RECORD,,\n"
    buffer = io.BytesIO()
    # Stored, not deflated: compressors differ, and the same content must give the same bytes.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as wheel:
        for name, body in [*files, (f"{info}/RECORD", record.encode())]:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, body)
    return buffer.getvalue()


def _b64(body: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
