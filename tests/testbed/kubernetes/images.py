"""Images of the test bed, made without a registry or a builder: a base with Python, and this very Headway on top.

Headway's own dependencies lie beside it; torch comes from this machine's own site-packages, which tests mount at /site.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from headway.core.plan import Code
from headway.packaging import supervisor_image

TRAINER, PAUSE = "docker.io/local/headway-test:1", "docker.io/local/pause:1"
PLAIN = "docker.io/local/plain:1"  # Debian with Python, without Headway
SUPERVISOR = "docker.io/local/supervisor"
SITE = "/site"
PACKAGES = "python3,ca-certificates"
DIST = "usr/local/lib/python3.11/dist-packages"
BASE = ("argcomplete", "obstore", "pathspec", "yaml", "rich", "typing_extensions.py")  # what every rank imports
TRAINS_INSIDE = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(
        sys.version_info[:2] != (3, 11), reason="kubernetes: the image has Python 3.11, torch is mounted"
    ),
]
SOURCE = Path(__file__).resolve().parents[3] / "src" / "headway"


def lay_ready(cache: Path, socket: str) -> None:
    """Import both into containerd. The base is made once; Headway's layer is what is here now."""
    folder = cache / "images"
    folder.mkdir(exist_ok=True)
    base = folder / "base.tar"
    if not base.exists():
        _debootstrap(base)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        pause = Path(work) / "pause.tar"
        _archive(pause, PAUSE, [_layer({"pause": (cache / "bin/pause").read_bytes()}, mode=0o755)], ["/pause"])
        trainer = Path(work) / "trainer.tar"
        _archive(trainer, TRAINER, [base.read_bytes(), _headway()], ["python3"])
        plain = Path(work) / "plain.tar"
        _archive(plain, PLAIN, [base.read_bytes()], ["python3"])
        for archive in (pause, trainer, plain):
            _import(archive, socket)


def lay_supervisor_ready(cache: Path, socket: str, code: Code) -> None:
    """Import the supervisor's image, which `headway image --push` would build and push."""
    with tempfile.TemporaryDirectory(dir=cache / "images") as work:
        context, layer = Path(work) / "context", Path(work) / "layer.tar"
        context.mkdir()
        supervisor_image.write_context(code, context)
        with tarfile.open(layer, "w") as tar:
            for name in ("runtime", "wheel"):
                tar.add(context / name, name)
        archive = Path(work) / "image.tar"
        _archive(archive, supervisor_image.image_name(SUPERVISOR, code), [layer.read_bytes()], ["none"])
        _import(archive, socket)


def _import(archive: Path, socket: str) -> None:
    words = ["ctr", "-a", socket, "-n", "k8s.io", "images", "import", str(archive)]
    subprocess.run(words, check=True, capture_output=True)


def site_packages() -> str:
    """Of the interpreter that runs the tests."""
    import sysconfig

    return sysconfig.get_path("purelib")


def _headway() -> bytes:
    files = {f"{DIST}/headway-test.pth": f"{SITE}\n".encode()}
    site = Path(site_packages())
    for root in (SOURCE, *(site / name for name in BASE)):
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.is_file() and "__pycache__" not in path.parts:
                files[f"{DIST}/{path.relative_to(root.parent)}"] = path.read_bytes()
    return _layer(files)


def _layer(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def _archive(path: Path, name: str, layers: list[bytes], command: list[str]) -> None:
    """In the form of `docker save`."""
    digests = [hashlib.sha256(layer).hexdigest() for layer in layers]
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": command, "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
            "history": [{"created": "2020-01-01T00:00:00Z"} for _ in digests],
        }
    ).encode()
    files = {f"{digest}/layer.tar": layer for digest, layer in zip(digests, layers, strict=True)}
    own = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": own, "RepoTags": [name], "Layers": list(files)}]).encode()
    with tarfile.open(path, "w") as archive:
        for each, content in {own: config, **files, "manifest.json": manifest}.items():
            entry = tarfile.TarInfo(each)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def _debootstrap(to: Path) -> None:
    root = to.with_suffix(".root")
    shutil.rmtree(root, ignore_errors=True)
    made = subprocess.run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root)],
                          capture_output=True, text=True)  # fmt: skip
    assert made.returncode == 0, made.stdout[-2000:]
    partial = to.with_suffix(".part")
    leavings = ("--exclude=./var/cache/apt/archives/*.deb", "--exclude=./var/lib/apt/lists/*", "--exclude=./dev/*")
    subprocess.run(["tar", "-C", str(root), "--numeric-owner", *leavings, "-cf", str(partial), "."], check=True)
    os.replace(partial, to)
    shutil.rmtree(root)
