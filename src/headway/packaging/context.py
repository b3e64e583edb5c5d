"""The build context of an image: a Dockerfile and what it copies, nothing else of this machine."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.core.errors import BadPlan, NotThere
from headway.packaging import requirements
from headway.packaging.code import archive_path, unpack, wheel_path
from headway.packaging.dockerfile import ImageSpec, dockerignore
from headway.storage import join, open_store

DOCKERIGNORE = ".dockerignore"


@contextmanager
def context(image: ImageSpec, outputs: str) -> Iterator[Path]:
    """Yield a temporary build context, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="headway-image-") as folder:
        write_context(image, outputs, Path(folder))
        yield Path(folder)


def write_context(image: ImageSpec, outputs: str, folder: Path) -> None:
    """Write a build context for `docker build`. Code and wheel come from our cache, else from `outputs`."""
    code, wheel = folder / "code", folder / image.wheel
    folder.mkdir(parents=True, exist_ok=True)
    _unpack_code(image, outputs, folder)
    wheel.write_bytes(_wheel_path(image, outputs))
    project_ignore = code / DOCKERIGNORE
    lines = project_ignore.read_text().splitlines() if project_ignore.is_file() else []
    (folder / "Dockerfile").write_text(image.dockerfile())
    (folder / DOCKERIGNORE).write_text(dockerignore(lines))
    _write_requirements(image, code, folder / "requirements", wheel)
    _make_readable(code)


def _unpack_code(image: ImageSpec, outputs: str, folder: Path) -> None:
    archive = archive_path(image.code_sha256)
    if archive.is_file():
        unpack(archive, image.code_sha256, folder / "code")
        return
    with tempfile.NamedTemporaryFile(prefix="headway-code-", suffix=".tar.gz") as copy:
        copy.write(_read_uploaded(outputs, archive.name))
        copy.flush()
        unpack(Path(copy.name), image.code_sha256, folder / "code")


def _wheel_path(image: ImageSpec, outputs: str) -> bytes:
    cached = wheel_path(image.wheel)
    body = cached.read_bytes() if cached.is_file() else _read_uploaded(outputs, image.wheel)
    if hashlib.sha256(body).hexdigest() != image.wheel_sha256:
        raise BadPlan(f"{image.wheel} is not the one that was planned", fix="headway plan")
    return body


def _read_uploaded(outputs: str, name: str) -> bytes:
    try:
        return open_store(join(outputs, "code")).read(name)
    except NotThere:
        raise BadPlan(f"{name} is neither here nor in {outputs}/code", fix="headway plan") from None


def _write_requirements(image: ImageSpec, code: Path, folder: Path, wheel: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "headway.txt").write_text(requirements.wheel_requirements(wheel, image.extras))
    for name in requirements.files(code, image.requirements) if image.requirements else []:
        copy = folder / "yours" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(code / name, copy)


def _make_readable(code: Path) -> None:
    """Make the code readable and writable by all: any user may run the image, and scripts write beside their code."""
    for path in [code, *code.rglob("*")]:
        executable = path.is_dir() or os.access(path, os.X_OK)
        path.chmod(0o777 if executable else 0o666)
