"""Storage without the credentials of the person who runs the tests, and servers to break at will."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from headway.core.retry import RetryPolicy
from tests.servers.gcs import GcsServer

CLOUD_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_", "GCE_", "STORAGE_EMULATOR_HOST", "CLOUDSDK_")

# Tests of what fails must not wait as long as a run would.
QUICK = RetryPolicy(tries=3, total_s=10, first_pause_s=0.01, longest_pause_s=0.05, connect_s=2, request_s=10)


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No credentials of the person who runs the tests, and no metadata server of the machine."""
    for name in list(os.environ):
        if name.startswith(CLOUD_VARIABLES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def folder_name() -> str:
    """A fresh folder in a bucket that all tests share."""
    return f"t-{uuid.uuid4().hex[:12]}/sub folder"


@pytest.fixture(scope="session")
def shared_gcs() -> Iterator[GcsServer]:
    with GcsServer("bucket", page=7) as server:
        yield server


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    """A server of the test's own, to break at will, reached as an emulator."""
    with GcsServer("bucket") as server:
        server.tokens.add("emulator")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server
