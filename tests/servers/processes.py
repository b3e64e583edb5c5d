"""Real object stores as processes: moto (S3), Azurite (Azure Blob) and s3rver (an S3 that ignores conditions).

Azurite and s3rver come from npm, into `.cache/node` of this repository, once. Where that cannot be, the tests that
need them are skipped and say so.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NODE_CACHE = REPOSITORY / ".cache" / "node"
AZURITE, S3RVER = "azurite@3.35.0", "s3rver@3.7.1"

_ADDRESS = re.compile(r"127\.0\.0\.1:[1-9]\d*")
_START_S = 60
# How a client of ours finds moto; its address goes beside them.
MOTO_SETTINGS = {
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "k",
    "AWS_SECRET_ACCESS_KEY": "s",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def moto() -> Iterator[str]:
    """The URL of an S3 server. Any key is accepted; buckets are made by the client."""
    pytest.importorskip("moto", reason="moto is not installed: pip install 'moto[s3,secretsmanager,server]'")
    with _process([sys.executable, str(Path(__file__).with_name("moto_main.py"))]) as url:
        yield url


@contextmanager
def azurite() -> Iterator[str]:
    """The URL of an Azure Blob server, with Microsoft's published account `devstoreaccount1`."""
    main = _node_module(AZURITE) / "dist/src/blob/main.js"
    options = ["--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", "0", "--silent"]
    quiet = ["--skipApiVersionCheck", "--disableTelemetry"]
    with _process(["node", str(main), *options, *quiet], marker="listens") as url:
        yield url


@contextmanager
def s3rver() -> Iterator[str]:
    """The URL of an S3 server that accepts If-None-Match and If-Match and then overwrites all the same."""
    main = _node_module(S3RVER) / "bin/s3rver.js"
    with tempfile.TemporaryDirectory() as folder:
        options = ["--directory", folder, "--address", "127.0.0.1", "--port", "0", "--configure-bucket", "bucket"]
        with _process(["node", str(main), *options], marker="listening") as url:
            yield url


@contextmanager
def _process(command: list[str], marker: str = "listening") -> Iterator[str]:
    """Runs it until the block ends; yields the address that it prints on a line with `marker`."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL
        )
        try:
            yield _address(process, marker)
        finally:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[str], marker: str) -> str:
    assert process.stdout is not None
    watchdog = threading.Timer(_START_S, process.kill)  # a server that says nothing must not hang the tests
    watchdog.start()
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if marker in line and (found := _ADDRESS.search(line)):
                threading.Thread(target=process.stdout.read, daemon=True).start()  # or it blocks on a full pipe
                return f"http://{found[0]}"
    finally:
        watchdog.cancel()
    raise RuntimeError(f"{process.args!r} did not start:\n{''.join(lines)}")


def _node_module(package: str) -> Path:
    name, _, version = package.partition("@")
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip(f"{name} needs node and npm, which are not installed")
    NODE_CACHE.mkdir(parents=True, exist_ok=True)
    folder = NODE_CACHE / "node_modules" / name
    with (NODE_CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "package.json").exists():
            install = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(NODE_CACHE), package]
            ended = subprocess.run(install, capture_output=True, text=True, timeout=240, check=False)
            if ended.returncode:
                pytest.skip(f"{name} {version} cannot be installed from npm: {ended.stderr.strip()[-200:]}")
    return folder
