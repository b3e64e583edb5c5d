"""Where a rehearsal happens: a folder that is removed, an index of its own, an interpreter that is made once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headway.errors import RunFailed
from headway.home import home

if TYPE_CHECKING:
    from headway.spec import Job

Say = Callable[[str], None]


def environment(job: Job, say: Say) -> str | None:
    """The interpreter with what the job requires: ours, or one made once for each content of the requirements."""
    if not job.requirements:
        return None
    import hashlib

    wanted = (Path(job.root) / job.requirements).read_bytes()
    name = hashlib.sha256(wanted + sys.version.encode() + sys.prefix.encode()).hexdigest()[:16]
    place = home() / "rehearse" / name
    python = place / "bin" / "python"
    if (place / "ready").exists():
        return str(python)
    say(f"installing {job.requirements} for the rehearsal, once")
    shutil.rmtree(place, ignore_errors=True)
    try:
        _call([sys.executable, "-m", "venv", str(place)])
        (site,) = place.glob("lib/python*/site-packages")
        # What is installed beside Headway is seen there too, so that torch is not downloaded again.
        own = [path for path in sys.path if path.endswith(("site-packages", "dist-packages")) or _holds_headway(path)]
        (site / "beside.pth").write_text("\n".join(own) + "\n")
        _call(
            [
                str(python),
                "-m",
                "pip",
                "install",
                "-q",
                "--disable-pip-version-check",
                "-r",
                str(Path(job.root) / job.requirements),
            ]
        )
    except subprocess.CalledProcessError as error:
        shutil.rmtree(place, ignore_errors=True)
        last = [line for line in (error.stderr or "").splitlines() if line.strip()][-3:]
        raise RunFailed(
            "the requirements cannot be installed: " + "\n    ".join(last), fix="mend requirements"
        ) from None
    (place / "ready").touch()
    return str(python)


def _holds_headway(path: str) -> bool:
    return bool(path) and (Path(path) / "headway" / "version.py").exists()


def _call(argv: list[str]) -> None:
    subprocess.run(argv, check=True, capture_output=True, text=True)


@contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="headway-rehearsal-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def own_index(folder: Path) -> Iterator[None]:
    """A rehearsal is no run: it stands in nobody's list, and teaches only what is taught on purpose."""
    before = os.environ.get("HEADWAY_HOME")
    shared = home()
    os.environ["HEADWAY_HOME"] = str(folder / "home")
    (folder / "home").mkdir()
    for name in ("code", "wheels", "rehearse"):
        (shared / name).mkdir(parents=True, exist_ok=True)
        (folder / "home" / name).symlink_to(shared / name)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("HEADWAY_HOME", None)
        else:
            os.environ["HEADWAY_HOME"] = before


def picture(folder: Path) -> str:
    """A small picture, made without any library."""
    import struct
    import zlib

    side = 64
    rows = b"".join(b"\0" + b"".join(bytes((x * 3, y * 3, 128)) for x in range(side)) for y in range(side))

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    picture = folder / "rehearsal.png"
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    picture.write_bytes(png)
    return str(picture)
