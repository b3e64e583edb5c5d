"""The supervisor's own interpreter as one archive named by its content: runs in any image, whatever that has inside.

Made of the Python that runs this process: its executable, dynamic loader, shared libraries, standard library, and the
packages that the supervisor needs. Started through its own loader, it needs neither Python nor a libc nor a shell in
the image. docker and ssh mount it, Kubernetes copies it in by an init container (`supervisor_image`), Vertex AI's boot
script fetches it. Layout: bin/python3, lib/ld.so, lib/*.so, lib/pythonX.Y/, packages/, etc/ca-certificates.crt.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import json
import os
import platform
import py_compile
import re
import shutil
import ssl
import struct
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from headway.core.errors import BadPlan, TargetError
from headway.core.platform import MARKER, state_dir
from headway.core.program import is_foreign_image, is_project
from headway.packaging.requirements import extras
from headway.storage import open_store

FORMAT = 2  # of the archive: another number makes new ones
RUNTIME_DIR, WHEEL_DIR = "/headway/runtime", "/headway/wheel"  # in a container
LOADER, PYTHON, PACKAGES, CERTIFICATES = "lib/ld.so", "bin/python3", "packages", "etc/ca-certificates.crt"
PYTHON_VARIABLE = "HEADWAY_PYTHON"  # the target's `python`: the image's interpreter for the project
ENTRY = "headway/supervisor/image_entry.py"  # in the wheel
_NEEDED = ("obstore", "pathspec", "pyyaml")
_NEEDED_BY_EXTRA = {"gcp": ("google-auth", "requests"), "aws": ("boto3",), "azure": ("azure-identity",)}
_LEFT_OUT = {"__pycache__", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "dist-packages", "test"}
_LEFT_OUT |= {"tests", "tkinter", "turtledemo", "turtle.py"}
_UNUSED = re.compile(r"(_curses\w*|_dbm|_gdbm|_tkinter|_test\w*|_ctypes_test|_xxtestfuzz|nis|readline)\.")
_LDD_LINE = re.compile(r"^\s+(?:(\S+) => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)
_MACHINES = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
Files = dict[str, tuple[bytes, int]]  # name -> content and mode


def is_ready_image(job: Mapping[str, Any]) -> bool:
    """Return whether a recorded job runs the user's own program in an image that Headway did not build."""
    return is_project(job) and is_foreign_image(job)


def unavailable_reason(image_platform: str = "linux/amd64") -> str:
    """Return why this machine cannot make a runtime for images of that platform; empty if it can."""
    here = _MACHINES.get(platform.machine(), platform.machine())
    if sys.platform != "linux":
        return f"it is made from a Python for Linux, and this machine runs {platform.system()}"
    if not image_platform.startswith(here):
        return f"it is made from this machine's Python for {here}, and the image is for {image_platform}"
    return "" if shutil.which("ldd") else "ldd is not installed here"


def runtime_name(job: Mapping[str, Any], image_platform: str = "linux/amd64") -> str:
    """Return the archive's name for a recorded job, after making it unless it is in this machine's cache.

    Empty for a job that needs none, and where none can be made.
    """
    if not is_ready_image(job) or unavailable_reason(image_platform):
        return ""
    wanted = (*_NEEDED, *(name for extra in extras(job) for name in _NEEDED_BY_EXTRA.get(extra, ())))
    packages = _closure(wanted)
    record = _folder() / f"made-{_fingerprint(packages)}.json"
    try:
        name = str(json.loads(record.read_bytes())["name"])
        if archive_path(name).is_file():
            return name
    except (OSError, ValueError, KeyError, TypeError):
        pass  # never made here, or damaged: make it
    tar = _pack(_collect(packages))
    name = f"runtime-{hashlib.sha256(tar).hexdigest()}.tar.gz"
    store = open_store(str(_folder()))
    store.write(name, gzip.compress(tar, compresslevel=3, mtime=0))
    store.write(record.name, json.dumps({"name": name}).encode())
    return name


def archive_path(name: str) -> Path:
    return _folder() / name


def unpacked_path(name: str) -> Path:
    """Return where `unpack_here` unpacks the archive on this machine."""
    return _folder() / name.removesuffix(".tar.gz")


def unpack_here(name: str, outputs_code: str) -> Path:
    """Unpack the archive into this machine's cache unless it is there; from `outputs_code` if the archive is not."""
    to = unpacked_path(name)
    if (to / MARKER).is_file():
        return to
    path = archive_path(name)
    body = path.read_bytes() if path.is_file() else open_store(outputs_code).read(name)
    partial = Path(tempfile.mkdtemp(prefix=f"{to.name}.", dir=_made(_folder())))
    try:
        unpack(body, name, partial)
        partial.rename(to)
    except OSError:
        if not (to / MARKER).is_file():  # else another process was faster
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return to


def unpack(body: bytes, name: str, to: Path) -> None:
    """Unpack an archive after checking its content against its name."""
    tar = check(body, name)
    with tarfile.open(fileobj=io.BytesIO(tar)) as members:
        for member in members:
            content = members.extractfile(member)
            if content is None or member.name.startswith("/") or ".." in Path(member.name).parts:
                raise BadPlan(f"unsafe path in {name}: {member.name!r}", fix="headway plan")
            path = to / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())
            path.chmod(member.mode)
    for folder in {parent for path in to.rglob("*") for parent in path.relative_to(to).parents}:
        (to / folder).chmod(0o755)  # whatever the umask: the image's user may be another


def check(body: bytes, name: str) -> bytes:
    """Return the archive's uncompressed content. Raises BadPlan unless its hash is the one in the name."""
    try:
        tar = gzip.decompress(body)
    except (OSError, EOFError) as error:
        raise BadPlan(f"{name} is damaged: {error}", fix="headway plan") from None
    if hashlib.sha256(tar).hexdigest() != name.removeprefix("runtime-").removesuffix(".tar.gz"):
        raise BadPlan(f"{name} differs from the one in the plan", fix="headway plan")
    return tar


def python_words(root: str = RUNTIME_DIR) -> list[str]:
    """Return the command of the runtime's interpreter, isolated from the image's variables and packages."""
    return [f"{root}/{LOADER}", "--library-path", f"{root}/lib", f"{root}/{PYTHON}", "-I", "-S"]


def start_words(module: str, *words: str, root: str = RUNTIME_DIR, wheel: str = WHEEL_DIR) -> list[str]:
    """Return the command that runs a module of the planned Headway in any image."""
    return [*python_words(root), f"{wheel}/{ENTRY}", module, *words]


# What goes in


def _folder() -> Path:
    return state_dir() / "runtimes"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _executable() -> Path:
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def _fingerprint(packages: Mapping[str, metadata.Distribution]) -> str:
    """Identify the archive by what it is made of, without reading all of it."""
    executable = _executable()
    stats = [executable.stat(), Path(os.__file__).stat()]
    versions = {name: package.version for name, package in packages.items()}
    text = [FORMAT, sys.version, str(executable), [[each.st_size, each.st_mtime_ns] for each in stats], versions]
    return hashlib.sha256(json.dumps(text, sort_keys=True).encode()).hexdigest()[:16]


def _closure(names: Iterable[str]) -> dict[str, metadata.Distribution]:
    """Return the installed distributions of these names and what they require. Those that are missing are left out."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        lines = [line for line in found[name].requires or () if "extra ==" not in line]
        waiting += [match[0] for line in lines if (match := re.match(r"[\w.-]+", line))]
    return dict(sorted(found.items()))


def _collect(packages: Mapping[str, metadata.Distribution]) -> Files:
    stdlib = Path(sysconfig.get_path("stdlib"))
    files: Files = {PYTHON: (_executable().read_bytes(), 0o755)}
    origins = {PYTHON: _executable()}
    for name, path in [*_standard_library(stdlib), *_package_files(packages)]:
        origins[name] = path
        files |= _python_files(name, path) if path.suffix == ".py" else {name: (path.read_bytes(), 0o644)}
    files |= _libraries([path for name, path in origins.items() if name == PYTHON or ".so" in path.name], origins)
    certificates = ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"
    if Path(certificates).is_file():  # for images that have none
        files[CERTIFICATES] = (Path(certificates).read_bytes(), 0o644)
    files[MARKER] = (json.dumps({"format": FORMAT, "python": platform.python_version()}).encode(), 0o644)
    return files


def _standard_library(stdlib: Path) -> Iterator[tuple[str, Path]]:
    folder = f"{sys.platlibdir}/{stdlib.name}"
    for path in sorted(_walk(stdlib)):
        parts = path.relative_to(stdlib).parts
        if parts[0].startswith("config-") or _UNUSED.match(path.name) or path.name in _LEFT_OUT:
            continue
        if path.is_file() and (path.suffix == ".py" or ".so" in path.name):
            yield f"{folder}/{'/'.join(parts)}", path


def _walk(stdlib: Path) -> Iterator[Path]:
    """Yield the files below the standard library, without entering folders such as site-packages."""
    for folder, below, names in os.walk(stdlib):
        below[:] = [name for name in below if name not in _LEFT_OUT]
        yield from (Path(folder, name) for name in names)


def _package_files(packages: Mapping[str, metadata.Distribution]) -> Iterator[tuple[str, Path]]:
    for package in packages.values():
        for file in package.files or ():
            path = Path(str(package.locate_file(file)))
            if ".." in file.parts or "__pycache__" in file.parts or file.suffix in (".pyi", ".pth"):
                continue
            if path.is_file():
                yield f"{PACKAGES}/{file.as_posix()}", path


def _python_files(name: str, path: Path) -> Files:
    """Return a source file with its compiled form, which Python will not check against the file's time."""
    source = path.read_bytes()
    cached = Path(importlib.util.cache_from_source(str(path)))
    folder, _, _ = name.rpartition("/")
    header = importlib.util.MAGIC_NUMBER + struct.pack("<I", 1) + importlib.util.source_hash(source)
    body = _cached_code(cached, path) or _compiled(path, name)
    compiled = {f"{folder}/__pycache__/{cached.name}": (header + body, 0o644)} if body else {}
    return {name: (source, 0o644), **compiled}


def _cached_code(cached: Path, source: Path) -> bytes:
    try:
        body, found = cached.read_bytes(), source.stat()
    except OSError:
        return b""
    expected = importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, int(found.st_mtime), found.st_size)
    return body[16:] if body[:16] == expected else b""


def _compiled(path: Path, name: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="headway-runtime-") as folder:
        made = Path(folder, "code.pyc")
        try:
            py_compile.compile(str(path), cfile=str(made), dfile=name, doraise=True, optimize=0)
        except py_compile.PyCompileError:  # a template, or a file for another version
            return b""
        return made.read_bytes()[16:]


def _libraries(binaries: list[Path], origins: Mapping[str, Path]) -> Files:
    """Return the shared libraries and the loader that the binaries need, outside of what is copied anyway."""
    done = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False)
    found = {Path(match[2]).name: Path(match[2]) for match in _LDD_LINE.finditer(done.stdout)}
    loaders = {Path(match[2]) for match in _LDD_LINE.finditer(done.stdout) if match[1] is None}
    if len(loaders) != 1:
        raise TargetError(
            f"ldd does not say which loader {binaries[0]} uses: {(done.stderr or done.stdout)[:200]}",
            fix=f"ldd {binaries[0]}",
        )
    copied = set(origins.values())
    libraries: Files = {}
    for name, path in found.items():
        if path not in copied:
            libraries[f"lib/{name}"] = (path.read_bytes(), 0o755)
    libc = next((path for name, path in found.items() if name.startswith("libc.so")), None)
    for name in ("libnss_dns.so.2", "libnss_files.so.2", "libresolv.so.2"):  # opened by libc when it looks up names
        if libc is not None and (libc.parent / name).is_file():
            libraries[f"lib/{name}"] = ((libc.parent / name).read_bytes(), 0o755)
    (loader,) = loaders
    return {**libraries, LOADER: (loader.read_bytes(), 0o755)}


def _pack(files: Files) -> bytes:
    """Make a tar that does not depend on owners or times. Its marker comes last: a folder that has it is complete."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, (body, mode) in sorted(files.items(), key=lambda file: (file[0] == MARKER, file[0])):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(body), mode
            tar.addfile(member, io.BytesIO(body))
    return buffer.getvalue()
