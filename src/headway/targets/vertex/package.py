"""The source package for `mode: package`: the planned code and `boot`, content-addressed; and Google's images for it.

pip builds it on the machine with a build backend inside the package, so nothing is downloaded for that. It has no
dependencies, so that pip has no reason to change the image's packages; Headway's own wheel is installed beside it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from importlib import resources
from importlib.metadata import requires
from typing import TYPE_CHECKING

from headway.core.errors import BadPlan, Problem
from headway.packaging.code import archive_path
from headway.storage import join, open_store

if TYPE_CHECKING:
    from headway.core.plan import Plan


NAME = "headway_job"
MODULE = f"{NAME}.task"
_EXTRA = re.compile(r"""\s*(?:and\s+)?extra\s*==\s*['"]([\w-]+)['"](?:\s+and)?\s*""")

_TASK = f'''\
"""The entry point that Vertex AI starts."""
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
    """Return the source of `boot`, which runs where Headway is not installed."""
    return resources.files("headway.targets.vertex").joinpath("boot.py").read_text(encoding="utf-8")


def version(plan: Plan) -> str:
    """Return a version derived from the content: the first 48 bits of a hash, as a number, which pip requires."""
    parts = [plan.code.sha256, _TASK, _PYPROJECT, _BACKEND, boot_source()]
    return f"0.{int(hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:12], 16)}"


def file_name(plan: Plan) -> str:
    return f"{NAME}-{version(plan)}.tar.gz"


def sdist(plan: Plan, code_tar: bytes) -> bytes:
    """Build the source package. Reproducible: the same plan gives the same bytes."""
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
    """Return the plan's code as a tar, from the local cache or `outputs`. Raises BadPlan if its hash differs."""
    archive = archive_path(plan.code.sha256)
    packed = archive.read_bytes() if archive.is_file() else open_store(join(outputs, "code")).read(archive.name)
    tar = gzip.decompress(packed)
    if hashlib.sha256(tar).hexdigest() != plan.code.sha256:
        raise BadPlan("the code archive is not the one that was planned", where=archive.name, fix="headway plan")
    return tar


def requirements(extras: Iterable[str]) -> list[str]:
    """Return Headway's own requirements and those of the given extras, from its package metadata."""
    wanted, lines = set(extras), []
    for line in requires("headway") or []:
        requirement, _, marker = line.partition(";")
        part = _EXTRA.search(marker)
        if (part is None or part[1] in wanted) and not requirement.startswith("headway["):
            rest = _EXTRA.sub(" ", marker).strip()
            lines.append(requirement.strip() + (f"; {rest}" if rest else ""))
    return sorted(set(lines))


# Google's prebuilt training images, in which `mode: package` runs unless `image.uri` names another. A dated table, as
# Google publishes no machine-readable list.


AS_OF = date(2026, 11, 15)
OLDEST_PYTHON, OLDEST_TORCH = (3, 10), (2, 4)
_URI = re.compile(
    r"(?P<where>us|europe|asia)-docker\.pkg\.dev/vertex-ai/training/"
    r"(?P<framework>pytorch|tf|sklearn|xgboost)-(?P<device>gpu|cpu|xla|tpu)\.(?P<version>\d+-\d+)(?:\.py(?P<python>\d+))?"
    r"(?::[\w.-]+)?(?:@sha256:[0-9a-f]{64})?"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prebuilt:
    """A prebuilt image. `ends` is the last day of its availability that Google guarantees."""

    name: str
    torch: tuple[int, int] | None
    python: tuple[int, int]
    ends: date | None = None


IMAGES = {
    image.name: image
    for image in (
        Prebuilt(name="pytorch-gpu.2-4.py310", torch=(2, 4), python=(3, 10), ends=date(2026, 7, 24)),
        Prebuilt(name="pytorch-xla.2-4.py310", torch=(2, 4), python=(3, 10), ends=date(2026, 7, 24)),
        Prebuilt(name="pytorch-gpu.1-13.py310", torch=(1, 13), python=(3, 10), ends=date(2025, 5, 15)),
        Prebuilt(name="pytorch-xla.1-13.py310", torch=(1, 13), python=(3, 10), ends=date(2025, 5, 15)),
    )
}
NEWEST = {"gpu": "pytorch-gpu.2-4.py310", "cpu": "pytorch-xla.2-4.py310"}  # since 2.0 the XLA image serves CPUs


def default_uri(*, accelerated: bool, region: str) -> str:
    """Return the newest PyTorch image, in the registry nearest to the region."""
    image = NEWEST["gpu" if accelerated else "cpu"]
    return f"{_registry_location(region)}-docker.pkg.dev/vertex-ai/training/{image}:latest"


def parse_uri(uri: str) -> Prebuilt | None:
    """Describe an image by its name; None if it is not one of Google's training images."""
    found = _URI.fullmatch(uri)
    if found is None:
        return None
    version = tuple(int(part) for part in found["version"].split("-"))
    digits = found["python"] or "37"  # the oldest images have no Python version in their names
    name = f"{found['framework']}-{found['device']}.{found['version']}" + (f".py{digits}" if found["python"] else "")
    known = IMAGES.get(name)
    if known is not None:
        return known
    torch = (version[0], version[1]) if found["framework"] == "pytorch" else None
    return Prebuilt(name=name, torch=torch, python=(int(digits[0]), int(digits[1:])))


def problems(uri: str) -> Iterator[Problem]:
    """Yield why Headway cannot run in an image."""
    image = parse_uri(uri)
    newest = f"leave image.uri out: {NEWEST['gpu']} is the newest; or mode: container"
    if image is None:
        what = f"a package runs in one of Google's images for training, and {uri} is none of them"
        yield Problem(what=what, where="image.uri", fix="mode: container for an image of your own; or leave `uri` out")
    elif image.python < OLDEST_PYTHON:
        what = f"{image.name} is too old: it has Python {_dotted(image.python)}, and Headway needs 3.10"
        yield Problem(what=what, where="image.uri", fix=newest)
    elif image.torch is not None and image.torch < OLDEST_TORCH:
        what = f"{image.name} is too old: it has torch {_dotted(image.torch)}, and Headway needs 2.4"
        yield Problem(what=what, where="image.uri", fix=newest)


def notes(uri: str, today: date) -> Iterator[str]:
    image = parse_uri(uri)
    if image is None:
        return
    if image.name not in IMAGES:
        yield f"image: {image.name} is not in the table of {AS_OF}: whether it exists is known at launch"
    elif image.ends is not None and image.ends < today:
        yield (
            f"image: {image.name} is past its end ({image.ends}): Google no longer maintains it and may remove it; "
            "use mode: container with your own image"
        )
    elif image.ends is not None:
        yield f"image: {image.name} is available until {image.ends}"


def _registry_location(region: str) -> str:
    continent = region.partition("-")[0]
    return continent if continent in ("europe", "asia") else "asia" if continent == "australia" else "us"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
