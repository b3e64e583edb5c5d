"""podman with storage and settings of its own, and the base image that the docker tests use."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.testbed import docker

CACHE = docker.CACHE.parent / "podman"
# crun refuses hybrid cgroups, and high limits are refused to a root without all its powers.
SETTINGS = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
STORAGE = '[storage]\ndriver = "overlay"\ngraphroot = "{folder}/data"\nrunroot = "{folder}/run"\n'


@pytest.fixture(scope="session")
def podman() -> dict[str, str]:
    """The variables with which podman finds its own place."""
    if os.getuid() or any(shutil.which(name) is None for name in ("podman", "runc")):
        pytest.skip("podman: needs root, podman and runc")
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "containers.conf").write_text(SETTINGS)
    (CACHE / "storage.conf").write_text(STORAGE.format(folder=CACHE))
    env = {"CONTAINERS_CONF": f"{CACHE}/containers.conf", "CONTAINERS_STORAGE_CONF": f"{CACHE}/storage.conf"}
    if _podman(env, "image", "exists", docker.BASE).returncode:
        path = "ENV=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        made = _podman(env, "import", "--change", path, str(docker.base_tar()), docker.ROOT)
        made = made if made.returncode else _podman(env, "build", "--tag", docker.BASE, str(docker.base_context()))
        if made.returncode:
            pytest.skip(f"podman: it does not work here: {made.stderr.splitlines()[-1:]}")
    return env


def _podman(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["podman", *words], env={**os.environ, **env}, capture_output=True, text=True)
