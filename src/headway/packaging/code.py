"""Package the code that is sent: a content-named archive of the user's files, and Headway's own wheel. Runs no code.

A recipe needs no user code, so only its requirements are sent. For a script, its whole folder is sent, except for what
`.gitignore` and `.headwayignore` name, and never version control, environments, outputs or anything that looks like
a secret.
"""

from __future__ import annotations

import base64
import fnmatch
import gzip
import hashlib
import io
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headway._version import __version__
from headway.core.errors import BadInput, BadPlan
from headway.core.platform import state_dir
from headway.storage import open_store

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

    from headway.spec import Job


ALWAYS_IGNORED = (".git", ".hg", ".svn", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".pytest_cache",
         ".ruff_cache", ".ipynb_checkpoints", ".DS_Store", ".idea", ".tox", "*.pyc", "*.egg-info")  # fmt: skip
SECRET_PATTERNS = (".env", ".env.*", "*.pem", "*.key", "*.p12", "id_rsa*", "id_ecdsa*", "id_ed25519*",
                   ".netrc", ".aws", ".ssh", ".kube", ".pypirc", ".npmrc", "kaggle.json", "credentials.json",
                   "application_default_credentials.json", "*service-account*.json",
                   "*service_account*.json")  # fmt: skip
IGNORE_FILES = (".gitignore", ".headwayignore")


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """An archive named by its content: `sha256` is of the tar, so it does not depend on the compressor."""

    sha256: str
    path: Path
    files: tuple[tuple[str, int], ...]
    secrets: tuple[str, ...]  # left out because they look like secrets; the plan lists them

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.files)

    def largest_files(self, count: int = 5) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(self.files, key=lambda file: (-file[1], file[0]))[:count])


def archive_path(sha256: str) -> Path:
    """Return where this machine's cache keeps the archive of that content, if it has it."""
    return state_dir() / "code" / f"{sha256}.tar.gz"


def package(job: Job) -> Package:
    """Pack the job's code into this machine's cache. Writes nothing if that content is there already."""
    root = Path(job.root).resolve()
    secrets: list[str] = []
    chosen = set(_walk(root, _output_dirs(job, root), secrets)) if job.script else set()
    if job.requirements:  # a recipe's too: wherever it runs, they are installed first
        chosen.add(Path(job.requirements).as_posix())
    tar, files = _pack(root, sorted(chosen))
    sha256 = hashlib.sha256(tar).hexdigest()
    path = archive_path(sha256)
    if not path.exists():
        open_store(str(path.parent)).write(path.name, gzip.compress(tar, compresslevel=6, mtime=0))
    return Package(sha256=sha256, path=path, files=files, secrets=tuple(secrets))


def unpack(archive: Path, sha256: str, to: Path) -> None:
    """Unpack the archive below `to`, after checking that it is the one that was planned."""
    try:
        tar = gzip.decompress(archive.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise BadPlan(f"the code archive cannot be read: {error}", where=str(archive), fix="headway plan") from None
    if hashlib.sha256(tar).hexdigest() != sha256:
        raise BadPlan("the code archive is not the one that was planned", where=str(archive), fix="headway plan")
    to.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(tar)) as members:
        for member in members:
            if not member.isreg() or member.name.startswith("/") or ".." in Path(member.name).parts:
                raise BadPlan(f"the code archive holds {member.name!r}", where=str(archive), fix="headway plan")
            target = to / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            body = members.extractfile(member)
            assert body is not None  # isreg
            target.write_bytes(body.read())
            target.chmod(member.mode)


def _output_dirs(job: Job, root: Path) -> set[Path]:
    """Return folders that Headway itself writes to: they are not part of the user's code."""
    return {state_dir().resolve(), *([] if "://" in job.outputs else [(root / job.outputs).resolve()])}


def _walk(root: Path, output_dirs: set[Path], secrets: list[str]) -> Iterator[str]:
    """Yield the relative names of the files to send. Ignore files apply to their folder and below, as in git."""
    specs: dict[Path, GitIgnoreSpec] = {}
    for folder, names, files in os.walk(root):
        relative = Path(folder)
        spec = _ignore_spec(relative, files)
        if spec is not None:
            specs[relative] = spec
        names[:] = sorted(name for name in names if relative / name not in output_dirs)
        names[:] = [name for name in names if _is_included(relative / name, root, specs, secrets, folder=True)]
        for name in sorted(files):
            if _is_included(relative / name, root, specs, secrets, folder=False):
                yield (relative / name).relative_to(root).as_posix()


def _ignore_spec(folder: Path, files: list[str]) -> GitIgnoreSpec | None:
    lines = [line for name in IGNORE_FILES if name in files for line in (folder / name).read_text().splitlines()]
    if not lines:
        return None
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(lines)


def _is_included(path: Path, root: Path, specs: dict[Path, GitIgnoreSpec], secrets: list[str], *, folder: bool) -> bool:
    name = path.name
    if any(fnmatch.fnmatch(name, pattern) for pattern in ALWAYS_IGNORED):
        return False
    for base, spec in specs.items():
        if path.is_relative_to(base) and spec.match_file(path.relative_to(base).as_posix() + "/" * folder):
            return False
    if any(fnmatch.fnmatch(name, pattern) for pattern in SECRET_PATTERNS):
        secrets.append(path.relative_to(root).as_posix())
        return False
    return folder or _inside(path, root)


def _inside(path: Path, root: Path) -> bool:
    if path.is_symlink():
        target = path.resolve()
        if not target.is_relative_to(root) or not target.is_file():
            raise BadInput(
                f"{path.relative_to(root)} is a link to {target}, which would not be there",
                where=str(root),
                fix=f"echo {path.relative_to(root).as_posix()} >> .headwayignore, or copy the file",
            )
    return path.is_file()  # not sockets or pipes


def _pack(root: Path, names: list[str]) -> tuple[bytes, tuple[tuple[str, int], ...]]:
    """Make an uncompressed tar that does not depend on owners, times or directory order."""
    buffer, files = io.BytesIO(), []
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            try:
                body = (root / name).read_bytes()
            except OSError as error:
                raise BadInput(
                    f"cannot read {name}: {error.strerror}", where=str(root), fix=f"echo {name} >> .headwayignore"
                ) from None
            member = tarfile.TarInfo(name)
            member.size = len(body)
            member.mode = 0o755 if os.access(root / name, os.X_OK) else 0o644
            tar.addfile(member, io.BytesIO(body))
            files.append((name, len(body)))
    return buffer.getvalue(), tuple(files)


# Headway's own wheel, made from the installed package, so that every target runs the Headway that made the plan.
# Nothing is ever installed by the name `headway` from an index.


_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can hold: a fixed time, because times are not content


def wheel_path(name: str) -> Path:
    return state_dir() / "wheels" / name


def build_wheel() -> tuple[str, str]:
    """Return the wheel's file name, which carries a hash of its content, and its sha256. Built once per content."""
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
