"""S3 and GCS servers outside the cluster, which pods and the client reach under one address; and jobs that use them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from headway.spec import Image, Mount, Secret
from tests.servers import processes
from tests.servers.gcs import GcsServer
from tests.testbed.kubernetes.cluster import Cluster
from tests.testbed.kubernetes.images import SITE
from tests.testbed.kubernetes.names import forwarded

KEYS = {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "not-much-of-a-secret"}
BUCKET = "s3://bucket"


@contextmanager
def bucket(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Keys of a job whose pods keep their artifacts there; this process uses the same."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    with processes.moto() as url, reachable(cluster, url) as address:
        plain = {
            "AWS_ENDPOINT_URL": address,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }
        for name, value in {**plain, **KEYS, "KUBECONFIG": cluster.kubeconfig}.items():
            monkeypatch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="bucket")
        yield {
            "env": plain,
            "secrets": {name: Secret(ref=f"env:{name}") for name in KEYS},
            "image": Image(uri=cluster.image),
            "mounts": (Mount(path=cluster.site, at=SITE, read_only=True),) if cluster.site else (),
        }


@contextmanager
def google_bucket(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    """gs://bucket, for this process and for jobs that bring STORAGE_EMULATOR_HOST along."""
    with GcsServer("bucket") as server, reachable(cluster, server.url) as address:
        server.tokens.add("emulator")
        for name, value in {"STORAGE_EMULATOR_HOST": address, "KUBECONFIG": cluster.kubeconfig}.items():
            monkeypatch.setenv(name, value)
        yield server


@contextmanager
def reachable(cluster: Cluster, url: str) -> Iterator[str]:
    """An address of this machine's server that pods can use too."""
    port = _free_port(cluster.host)
    with forwarded((cluster.host, port), ("127.0.0.1", urlsplit(url).port or 0)):
        yield f"http://{cluster.host}:{port}"


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
