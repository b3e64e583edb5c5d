"""Root filesystems of images that are nothing like Headway's own: other distributions, another libc, no Python at all.

Made once and kept in ~/.cache/headway-tests, like the base image. `python -m tests.testbed.images` makes all of them.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testbed.docker import CACHE, docker

FOLDER = CACHE / "images"
UBUNTU = "http://archive.ubuntu.com/ubuntu"
# name -> (suite, mirror, packages): what debootstrap makes
_DEBOOTSTRAPPED = {
    "bullseye": ("bullseye", "http://deb.debian.org/debian", "python3"),  # Python 3.9, glibc 2.31
    "bionic": ("bionic", UBUNTU, "python3"),  # Ubuntu 18.04: Python 3.6, glibc 2.27
}
NAMES = (*_DEBOOTSTRAPPED, "musl", "scratch")
_PATH = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def image(name: str) -> str:
    """Return the name of an image in the test daemon, imported if it is not there. Skips where it cannot be made."""
    tag = f"headway-test-{name}:1"
    if not docker("images", "--quiet", tag):
        docker("import", "--change", _PATH, str(root_tar(name)), tag)
    return tag


def root_tar(name: str) -> Path:
    FOLDER.mkdir(parents=True, exist_ok=True)
    tar = FOLDER / f"{name}.tar"
    with open(FOLDER / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tar.exists():
            root = FOLDER / name
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir()
            _MAKERS.get(name, _debootstrap)(name, root)
            _pack(root, tar)
            shutil.rmtree(root)
    return tar


def _debootstrap(name: str, root: Path) -> None:
    suite, mirror, packages = _DEBOOTSTRAPPED[name]
    # The keys of other distributions are not installed here; nothing of these images is ever shipped.
    words = ["debootstrap", "--no-check-gpg", "--variant=minbase", f"--include={packages}", suite, str(root), mirror]
    made = subprocess.run(words, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"docker: {suite} cannot be had here: {made.stdout[-200:]}")


def _musl(name: str, root: Path) -> None:
    """Only musl as libc, and busybox linked against nothing."""
    _unpack_packages(root, "musl", "busybox-static")
    (root / "bin").mkdir(exist_ok=True)
    busybox = next(path for path in (root / "usr/bin/busybox", root / "bin/busybox") if path.is_file())
    listed = subprocess.run([str(busybox), "--list"], capture_output=True, text=True, check=True).stdout.split()
    for applet in listed:
        link = root / "bin" / applet
        if not link.exists():
            link.symlink_to(f"/{busybox.relative_to(root)}")


def _scratch(name: str, root: Path) -> None:
    """No shell, no libc, no Python: one program, linked against nothing."""
    _unpack_packages(root, "busybox-static")
    busybox = next(path for path in (root / "usr/bin/busybox", root / "bin/busybox") if path.is_file())
    program = busybox.read_bytes()
    shutil.rmtree(root)
    (root / "app").mkdir(parents=True)
    (root / "app/busybox").write_bytes(program)
    (root / "app/busybox").chmod(0o755)


def _unpack_packages(root: Path, *packages: str) -> None:
    downloads = root.with_suffix(".debs")
    shutil.rmtree(downloads, ignore_errors=True)
    downloads.mkdir()
    made = subprocess.run(["apt-get", "download", *packages], cwd=downloads, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"docker: {', '.join(packages)} cannot be had here: {made.stderr[-200:]}")
    for package in sorted(downloads.glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", str(package), str(root)], check=True)
    shutil.rmtree(downloads)
    for unneeded in ("usr/share/doc", "usr/share/man"):
        shutil.rmtree(root / unneeded, ignore_errors=True)


def _pack(root: Path, tar: Path) -> None:
    leavings = ("--exclude=./var/cache/apt/archives/*.deb", "--exclude=./var/lib/apt/lists/*")
    partial = tar.with_suffix(".part")
    subprocess.run(["tar", "-C", str(root), "--numeric-owner", *leavings, "-cf", str(partial), "."], check=True)
    partial.rename(tar)


_MAKERS = {"musl": _musl, "scratch": _scratch}

if __name__ == "__main__":
    for each in sys.argv[1:] or NAMES:
        root_tar(each)
