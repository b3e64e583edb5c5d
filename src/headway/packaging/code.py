"""Package the code that is sent: a content-named archive of the user's files, and Headway's own wheel. Runs no code.

A recipe needs no user code, so only its requirements are sent. For a project, `selection` chooses the files.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from headway._version import __version__
from headway.core.errors import BadInput, BadPlan
from headway.core.platform import state_dir
from headway.core.program import entry_files, uses_project_code
from headway.packaging.dependencies import find
from headway.packaging.secret_gate import check_wheel, files_of_secrets, refuse, scan_files
from headway.packaging.selection import LeftOut, Selection, select_files
from headway.spec import dump
from headway.storage import open_store

if TYPE_CHECKING:
    from headway.spec import Job


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """An archive named by its content: `sha256` is of the tar, so it does not depend on the compressor."""

    sha256: str
    path: Path
    files: tuple[tuple[str, int], ...]
    secrets: tuple[str, ...]  # left out because they are or look like secrets; the plan lists them
    left_out: tuple[LeftOut, ...] = ()  # data, weights and outputs in the project's folder; the plan names them

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.files)

    def largest_files(self, count: int = 5) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(self.files, key=lambda file: (-file[1], file[0]))[:count])


def archive_path(sha256: str) -> Path:
    """Return where this machine's cache keeps the archive of that content, if it has it."""
    return state_dir() / "code" / f"{sha256}.tar.gz"


def package(job: Job, *, in_place: bool = False) -> Package:
    """Pack the job's code into this machine's cache. Writes nothing if that content is there already.

    Args:
        job: The job.
        in_place: The run will use the project's folder on this machine. A file with a credential is then not recorded
            with the code, instead of being refused, unless the program itself consists of it.

    Raises:
        BadJob: For files with credentials in them, with file and line.
        BadInput: For a file that cannot be read, or a link out of the folder.
    """
    root = Path(job.root).resolve()
    program = sorted(_program_files(job, root))
    chosen = Selection(sent=program)  # a recipe's requirements are installed first, too
    if uses_project_code(dump(job)) or job.image.dockerfile:  # a Dockerfile may copy any file of the project
        chosen = select_files(root, _output_dirs(job, root), program, _files_in_arguments(job))
    bodies, secrets = _pass_gate(job, root, chosen, program if in_place else None)
    tar = _pack(root, bodies)
    sha256 = hashlib.sha256(tar).hexdigest()
    path = archive_path(sha256)
    if not path.exists():
        open_store(str(path.parent)).write(path.name, gzip.compress(tar, compresslevel=6, mtime=0))
    files = tuple((name, len(body)) for name, body in bodies.items())
    return Package(sha256=sha256, path=path, files=files, secrets=secrets, left_out=chosen.left_out)


def _pass_gate(
    job: Job, root: Path, chosen: Selection, recorded: list[str] | None
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Read the chosen files and leave out secrets; return the rest, and what was left out.

    `recorded` are the files that even a run in place must record; None refuses every file with a credential.
    """
    given = files_of_secrets(job, root) - chosen.allowed
    bodies = {name: _read(root, name) for name in chosen.sent if name not in given}
    found = scan_files(bodies.items(), chosen.allowed)
    refuse([one for one in found if recorded is None or one.name in recorded])
    for one in found:
        del bodies[one.name]
    return bodies, (*(name for name in chosen.secrets if name not in given), *map(str, found))


def unpack(archive: Path, sha256: str, to: Path) -> None:
    """Unpack the archive below `to`, after checking that its hash is the plan's."""
    try:
        tar = gzip.decompress(archive.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise BadPlan(f"the code archive cannot be read: {error}", where=str(archive), fix="headway plan") from None
    if hashlib.sha256(tar).hexdigest() != sha256:
        raise BadPlan("the code archive differs from the one in the plan", where=str(archive), fix="headway plan")
    to.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(tar)) as members:
        for member in members:
            if not member.isreg() or member.name.startswith("/") or ".." in Path(member.name).parts:
                raise BadPlan(f"unsafe path in code archive: {member.name!r}", where=str(archive), fix="headway plan")
            target = to / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            body = members.extractfile(member)
            assert body is not None  # isreg
            target.write_bytes(body.read())
            target.chmod(member.mode)


def _output_dirs(job: Job, root: Path) -> set[Path]:
    """Return folders that Headway itself writes to: they are not part of the user's code."""
    return {state_dir().resolve(), *([] if "://" in job.outputs else [(root / job.outputs).resolve()])}


def _program_files(job: Job, root: Path) -> set[str]:
    """Return the files that the job names as its program, its requirements and its Dockerfile."""
    needed = find(job)
    named = [*entry_files(dump(job)), job.image.dockerfile or "", needed.source]
    entries = {PurePosixPath(name).as_posix() for name in named if name and (root / name).is_file()}
    if not job.requirements:
        return entries
    from headway.packaging.requirements import files_present

    included = {file.as_posix() for file in files_present(root, job.requirements)}
    return {*entries, *included, Path(job.requirements).as_posix()}


def _files_in_arguments(job: Job) -> set[str]:
    words = [word for text in (*job.command, *job.args) for word in (text, text.partition("=")[2])]
    return {os.path.normpath(word) for word in words if word}


def _read(root: Path, name: str) -> bytes:
    try:
        return (root / name).read_bytes()
    except OSError as error:
        raise BadInput(
            f"cannot read {name}: {error.strerror}", where=str(root), fix=f"echo {name} >> .headwayignore"
        ) from None


def _pack(root: Path, bodies: Mapping[str, bytes]) -> bytes:
    """Make an uncompressed tar that does not depend on owners, times or directory order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, body in bodies.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            member.mode = 0o755 if os.access(root / name, os.X_OK) else 0o644
            tar.addfile(member, io.BytesIO(body))
    return buffer.getvalue()


# Headway's own wheel, made from the installed package, so that every target runs the Headway that made the plan.
# Nothing is ever installed by the name `headway` from an index.


_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can hold: a fixed time, because times are not content


def wheel_path(name: str) -> Path:
    return state_dir() / "wheels" / name


def build_wheel() -> tuple[str, str]:
    """Return the wheel's file name, which carries a hash of its content, and its sha256. Built once per content."""
    package = Path(__file__).parents[1]
    files = _package_files(str(package))
    known = wheel_path(f"{_fingerprint(files)}.json")
    try:
        name, sha256 = json.loads(known.read_text())
        if wheel_path(name).exists():
            return name, sha256
    except (OSError, ValueError):
        pass  # not made yet, or damaged
    name, sha256 = _make_wheel(package, files)
    open_store(str(known.parent)).write(known.name, json.dumps([name, sha256]).encode())
    return name, sha256


def _make_wheel(package: Path, files: list[os.DirEntry[str]]) -> tuple[str, str]:
    sources = sorted(
        (Path(file.path).relative_to(package.parent).as_posix(), Path(file.path).read_bytes()) for file in files
    )
    digest = hashlib.sha256()
    for name, body in sources:
        digest.update(f"{name}\0{len(body)}\0".encode() + body)
    # A wheel's build tag must start with a digit.
    name = f"headway-{__version__}-0{digest.hexdigest()[:12]}-py3-none-any.whl"
    path = wheel_path(name)
    if not path.exists():
        check_wheel(sources, Path(__file__).parents[2])
        open_store(str(path.parent)).write(name, _zip(sources))
    return name, hashlib.sha256(path.read_bytes()).hexdigest()


def _package_files(folder: str) -> list[os.DirEntry[str]]:
    found = []
    for entry in os.scandir(folder):
        if entry.is_dir() and entry.name != "__pycache__":
            found += _package_files(entry.path)
        elif entry.is_file():
            found.append(entry)
    return found


def _fingerprint(files: list[os.DirEntry[str]]) -> str:
    """Fingerprint the installed package by paths, sizes and times, which takes a tenth of the time of reading it."""
    stats = sorted((file.path, *map(str, (file.stat().st_size, file.stat().st_mtime_ns))) for file in files)
    return hashlib.sha256("\0".join(word for row in stats for word in row).encode()).hexdigest()[:16]


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
