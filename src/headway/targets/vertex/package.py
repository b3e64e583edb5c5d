"""A source package that runs in one of Google's images: the planned code and `boot`, named by content. Pure bytes.

pip builds it on the machine with a back end that is inside it: nothing is fetched for that. It requires nothing, so
that pip has no reason to touch what the image brings; Headway's own wheel is installed beside it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
from collections.abc import Iterable
from importlib import resources
from importlib.metadata import requires
from typing import TYPE_CHECKING

from headway.errors import BadPlan
from headway.planning.package import archive_path
from headway.storage import join, open_store

if TYPE_CHECKING:
    from headway.planning.model import Plan

NAME = "headway_job"
MODULE = f"{NAME}.task"
_EXTRA = re.compile(r"""\s*(?:and\s+)?extra\s*==\s*['"]([\w-]+)['"](?:\s+and)?\s*""")

_TASK = f'''\
"""What Vertex AI starts."""
from pathlib import Path

from {NAME} import boot

if __name__ == "__main__":
    boot.main(Path(__file__).with_name("code.tar").read_bytes())
'''

_PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""

_BACKEND = f'''\
"""Builds the wheel of this package with Python's own library alone."""
import base64, hashlib, pathlib, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name, version = "{NAME}", pathlib.Path("VERSION").read_text().strip()
    info = f"{{name}}-{{version}}.dist-info"
    files = {{str(path): path.read_bytes() for path in sorted(pathlib.Path(name).iterdir()) if path.is_file()}}
    files[f"{{info}}/METADATA"] = pathlib.Path("PKG-INFO").read_bytes()
    files[f"{{info}}/WHEEL"] = b"Wheel-Version: 1.0\\nGenerator: headway\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    record = ""
    for path, body in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
        record += f"{{path}},sha256={{digest}},{{len(body)}}\\n"
    files[f"{{info}}/RECORD"] = (record + f"{{info}}/RECORD,,\\n").encode()
    wheel = f"{{name}}-{{version}}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder) / wheel, "w") as archive:
        for path, body in files.items():
            archive.writestr(path, body)
    return wheel

def build_sdist(folder, config_settings=None):
    # Every build backend must have it; pip has the sdist in hand and never calls it.
    raise NotImplementedError("it is one already")
'''


def boot_source() -> str:
    """`boot`, as text: it runs where Headway is not installed."""
    return resources.files("headway.targets.vertex").joinpath("boot.py").read_text(encoding="utf-8")


def version(plan: Plan) -> str:
    """By content. pip wants numbers: the first 48 bits of a hash are one."""
    parts = [plan.code.sha256, _TASK, _PYPROJECT, _BACKEND, boot_source()]
    return f"0.{int(hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:12], 16)}"


def file_name(plan: Plan) -> str:
    return f"{NAME}-{version(plan)}.tar.gz"


def sdist(plan: Plan, code_tar: bytes) -> bytes:
    """The package itself. The same plan gives the same bytes."""
    top, number = f"{NAME}-{version(plan)}", version(plan)
    about = f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {number}\nSummary: {plan.job['name']}, packed by Headway\n"
    files = {
        "PKG-INFO": about.encode(),
        "VERSION": f"{number}\n".encode(),
        "backend.py": _BACKEND.encode(),
        "pyproject.toml": _PYPROJECT.encode(),
        f"{NAME}/__init__.py": b"",
        f"{NAME}/boot.py": boot_source().encode(),
        f"{NAME}/code.tar": code_tar,
        f"{NAME}/task.py": _TASK.encode(),
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, body in files.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return gzip.compress(buffer.getvalue(), compresslevel=6, mtime=0)


def planned_code(plan: Plan, outputs: str) -> bytes:
    """The plan's code as a tar, from this machine's cache or from beside its runs, and checked."""
    archive = archive_path(plan.code.sha256)
    packed = archive.read_bytes() if archive.is_file() else open_store(join(outputs, "code")).read(archive.name)
    tar = gzip.decompress(packed)
    if hashlib.sha256(tar).hexdigest() != plan.code.sha256:
        raise BadPlan("the code archive is not the one that was planned", where=archive.name, fix="headway plan")
    return tar


def needs(extras: Iterable[str]) -> list[str]:
    """What Headway needs where it trains, as its own metadata says: itself, and these parts of it."""
    wanted, lines = set(extras), []
    for line in requires("headway") or []:
        requirement, _, marker = line.partition(";")
        part = _EXTRA.search(marker)
        if (part is None or part[1] in wanted) and not requirement.startswith("headway["):
            rest = _EXTRA.sub(" ", marker).strip()
            lines.append(requirement.strip() + (f"; {rest}" if rest else ""))
    return sorted(set(lines))
