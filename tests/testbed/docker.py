"""A real Docker daemon for tests: Debian's, with its own folder, socket and base image, stopped afterwards.

No image can be pulled where these tests run, so the base is made once with debootstrap and kept in ~/.cache.
`python -m tests.testbed.docker` makes it, so that no test's time is spent on that.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CACHE = Path(os.environ.get("HEADWAY_TEST_CACHE") or "~/.cache/headway-tests").expanduser() / "docker"
SOCKET = Path("/run/headway-test-docker.sock")  # where other users can see it, and may not use it
HOST = f"unix://{SOCKET}"
ROOT, BASE = "headway-test-root:bookworm", "headway-test-base:bookworm"
PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")  # of this machine, which may have some of its own
START_S = 60.0
# No torch can be built into an image where these tests run: it is mounted from this machine.
TORCH_IS_MOUNTED = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(
        sys.version_info[:2] != (3, 11), reason="docker: the base has Python 3.11, and torch is mounted"
    ),
]
_running: list[subprocess.Popen[bytes]] = []


def unavailable_reason() -> str:
    """Why no daemon can run here; empty where one can."""
    if not os.environ.get("HEADWAY_TEST_DAEMONS"):
        return "a daemon of our own is started by make test-docker"
    if os.getuid():
        return "dockerd needs root"
    lacking = [name for name in ("docker", "dockerd", "containerd", "runc") if shutil.which(name) is None]
    if not (CACHE / "base.tar").exists():
        lacking += [name for name in ("debootstrap",) if shutil.which(name) is None]
    return f"{', '.join(lacking)} not installed: scripts/test-docker installs it" if lacking else ""


@pytest.fixture(scope="session")
def docker_host(request: pytest.FixtureRequest) -> str:
    """DOCKER_HOST of a daemon of our own that has the base image. One for the session, whoever imports this."""
    reason = unavailable_reason()
    if reason:
        pytest.skip(f"docker: {reason}")
    if not _running:
        holding = _started()
        holding.__enter__()
        request.config.add_cleanup(lambda: holding.__exit__(None, None, None))
    return HOST


@contextmanager
def _started() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one data folder serves one daemon
        _running.append(_dockerd())
        try:
            _require_base()
            yield
        finally:
            _tidy()
            _running[0].terminate()
            _running[0].wait(60)
            _running.clear()


def docker(*words: str, check: bool = True, **more: Any) -> str:
    """The daemon behind Headway's back."""
    env = {**os.environ, "DOCKER_HOST": HOST}
    done = subprocess.run(["docker", *words], env=env, capture_output=True, text=True, **more)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


def _dockerd() -> subprocess.Popen[bytes]:
    folders = ("--data-root", f"{CACHE}/data", "--exec-root", f"{CACHE}/exec", "--pidfile", f"{CACHE}/pid")
    (CACHE / "pid").unlink(missing_ok=True)  # of a daemon that was killed: we hold the lock
    with open(CACHE / "dockerd.log", "wb") as log:
        process = subprocess.Popen(["dockerd", *folders, "--host", HOST], stdout=log, stderr=log)
    limit = time.monotonic() + START_S
    while subprocess.run(["docker", "--host", HOST, "version"], capture_output=True).returncode:
        if process.poll() is not None or time.monotonic() > limit:
            process.kill()
            last = (CACHE / "dockerd.log").read_text(errors="replace").splitlines()[-3:]
            pytest.skip("docker: dockerd does not run here: " + " | ".join(last))
        time.sleep(0.2)
    for left in docker("ps", "--all", "--quiet").split():  # by a session that was killed
        docker("rm", "--force", "--volumes", left)
    return process


def base_tar() -> Path:
    """A small Debian with Python, as an archive: made once, by debootstrap, and kept."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "base.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (CACHE / "base.tar").exists():
            _debootstrap(CACHE / "root", CACHE / "base.tar")
    return CACHE / "base.tar"


def base_context() -> Path:
    """The folder from which the base is built on top of that archive: it brings this machine's certificates."""
    folder = CACHE / "base"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Dockerfile").write_text(f"FROM {ROOT}\nCOPY ca-certificates.crt {CERTIFICATES}\n")
    shutil.copyfile(CERTIFICATES, folder / CERTIFICATES.name)
    return folder


def _debootstrap(root: Path, tar: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    made = subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout[-2000:]
    leavings = ("--exclude=./var/cache/apt/archives/*.deb", "--exclude=./var/lib/apt/lists/*")
    partial = tar.with_suffix(".part")
    subprocess.run(["tar", "-C", str(root), "--numeric-owner", *leavings, "-cf", str(partial), "."], check=True)
    partial.rename(tar)
    shutil.rmtree(root)


def _require_base() -> None:
    if docker("images", "--quiet", BASE):
        return
    path = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    docker("import", "--change", path, str(base_tar()), ROOT)
    docker("build", "--tag", BASE, str(base_context()))


def _tidy() -> None:
    """Nothing runs on, and the disk does not fill up: images of tests go, the layers they share stay for next time."""
    for left in docker("ps", "--all", "--quiet", check=False).split():
        docker("rm", "--force", "--volumes", left, check=False)
    images = docker("images", "--quiet", "--filter", "label=headway.version", check=False).split()
    if images:
        docker("rmi", "--force", "--no-prune", *dict.fromkeys(images), check=False)
    docker("image", "prune", "--force", "--filter", "until=48h", check=False)


if __name__ == "__main__":
    base_tar()
