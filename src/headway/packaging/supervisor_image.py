"""An image with nothing but the supervisor's runtime and Headway, from scratch: an init container copies both into a
pod, whose own image then needs neither.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from pathlib import Path

from headway.core.plan import Code
from headway.core.platform import state_dir
from headway.packaging import build
from headway.packaging.code import wheel_path
from headway.packaging.dockerfile import LABEL_PREFIX, PLATFORM, label_instruction
from headway.packaging.engine import Engine
from headway.packaging.supervisor_runtime import archive_path, unpack
from headway.storage import open_store

ROOT, WHEEL = "/runtime", "/wheel"  # in the image


def image_name(repository: str, code: Code) -> str:
    """Return the image's name, whose tag is a hash of what is inside."""
    digest = hashlib.sha256(f"{code.runtime} {code.wheel_sha256}".encode()).hexdigest()
    return f"{repository}:{digest[:12]}"


def dockerfile(code: Code) -> str:
    labels = {f"{LABEL_PREFIX}.wheel": code.wheel_sha256, f"{LABEL_PREFIX}.version": code.wheel.split("-")[1]}
    lines = ["FROM scratch", f"COPY runtime/ {ROOT}/", f"COPY wheel/ {WHEEL}/", label_instruction(labels)]
    return "\n".join(lines) + "\n"


def push(engine: Engine, command: str, repository: str, code: Code) -> str:
    """Build the image unless it exists, push it, and return its name. Recorded on this machine."""
    name = build_image(engine, command, repository, code)
    engine([command, "push", name], within_s=None)
    record = _record_path(name)
    open_store(str(record.parent)).write(record.name, json.dumps({"name": name}).encode())
    return name


def is_pushed(name: str) -> bool:
    """Return whether this machine has pushed the image of this name."""
    return _record_path(name).exists()


def _record_path(name: str) -> Path:
    return state_dir() / "images" / f"supervisor-{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"


def build_image(engine: Engine, command: str, repository: str, code: Code) -> str:
    """Build the image unless it exists; return its name."""
    name = image_name(repository, code)
    if not build.is_present(engine, command, name):
        with tempfile.TemporaryDirectory(prefix="headway-supervisor-") as folder:
            write_context(code, Path(folder))
            engine([command, "build", "--force-rm", "--platform", PLATFORM, "--tag", name, folder], within_s=None)
    return name


def write_context(code: Code, folder: Path) -> None:
    """Write the build context from this machine's cache, in which `runtime_name` and `build_wheel` put the files."""
    unpack(archive_path(code.runtime).read_bytes(), code.runtime, folder / "runtime")
    with zipfile.ZipFile(wheel_path(code.wheel)) as wheel:
        wheel.extractall(folder / "wheel")
    for path in (folder / "wheel").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (folder / "wheel").chmod(0o755)
    (folder / "Dockerfile").write_text(dockerfile(code))
