"""The build context of an image: a Dockerfile and the files that it copies, and no others of this machine."""

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
from headway.packaging.dependencies import LIST_FILE
from headway.packaging.dockerfile import AnyImage, ImageSpec
from headway.packaging.own_dockerfile import OwnImage
from headway.packaging.selection import DOCKERIGNORE
from headway.storage import join, open_store


@contextmanager
def context(image: AnyImage, outputs: str) -> Iterator[Path]:
    """Yield a temporary build context, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="headway-image-") as folder:
        write_context(image, outputs, Path(folder))
        yield Path(folder)


def write_context(image: AnyImage, outputs: str, folder: Path) -> None:
    """Write a build context for `docker build`. Code and wheel come from our cache, else from `outputs`.

    It needs no .dockerignore: the code archive holds no file that must stay out of an image.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(image, OwnImage):
        _unpack_code(image, outputs, folder)
        if image.context == ".":  # it has chosen these files already: what .headwayignore sends in spite of it stays
            (folder / DOCKERIGNORE).unlink(missing_ok=True)
        return
    code, wheel = folder / "code", folder / image.wheel
    _unpack_code(image, outputs, code)
    wheel.write_bytes(_wheel_path(image, outputs))
    (folder / "Dockerfile").write_text(image.dockerfile())
    _write_requirements(image, code, folder / "requirements", wheel)
    _make_readable(code)


def _unpack_code(image: AnyImage, outputs: str, to: Path) -> None:
    archive = archive_path(image.code_sha256)
    if archive.is_file():
        unpack(archive, image.code_sha256, to)
        return
    with tempfile.NamedTemporaryFile(prefix="headway-code-", suffix=".tar.gz") as copy:
        copy.write(_read_uploaded(outputs, archive.name))
        copy.flush()
        unpack(Path(copy.name), image.code_sha256, to)


def _wheel_path(image: ImageSpec, outputs: str) -> bytes:
    cached = wheel_path(image.wheel)
    body = cached.read_bytes() if cached.is_file() else _read_uploaded(outputs, image.wheel)
    if hashlib.sha256(body).hexdigest() != image.wheel_sha256:
        raise BadPlan(f"{image.wheel} differs from the one in the plan", fix="headway plan")
    return body


def _read_uploaded(outputs: str, name: str) -> bytes:
    try:
        return open_store(join(outputs, "code")).read(name)
    except NotThere:
        raise BadPlan(f"{name} is neither on this machine nor in {outputs}/code", fix="headway plan") from None


def _write_requirements(image: ImageSpec, code: Path, folder: Path, wheel: Path) -> None:
    folder.mkdir(exist_ok=True)
    needed = requirements.wheel_requirements(wheel, image.extras)
    if image.torch and "\ntorch" in needed:
        needed += f"{image.torch}  # other versions have no kernels for the accelerator\n"
    (folder / "headway.txt").write_text(needed)
    if image.listed:
        (folder / LIST_FILE).write_text("".join(f"{line}\n" for line in image.listed))
    for name in requirements.files(code, image.requirements) if image.requirements else []:
        copy = folder / "yours" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(code / name, copy)


def _make_readable(code: Path) -> None:
    """Make the code readable and writable by all: any user may run the image, and scripts write beside their code."""
    for path in [code, *code.rglob("*")]:
        executable = path.is_dir() or os.access(path, os.X_OK)
        path.chmod(0o777 if executable else 0o666)
