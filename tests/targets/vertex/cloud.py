"""Google's cloud for one test: Vertex AI, Cloud Logging, Cloud Storage, tokens and secrets, all strict, all local."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headway.packaging.engine import NotFound
from headway.targets.vertex import client, lifecycle, target
from tests.servers import vertex_messages
from tests.servers.gcs import GcsServer
from tests.servers.google_auth import GoogleAuthServer
from tests.servers.secret_manager import SecretManagerServer
from tests.servers.vertex import VertexServer
from tests.servers.vertex_machines import Image


@dataclass(kw_only=True)
class Cloud:
    gcs: GcsServer
    auth: GoogleAuthServer
    vertex: VertexServer
    secrets: SecretManagerServer
    folder: Path

    def stored(self) -> list[str]:
        """The names of all objects in the bucket."""
        return sorted(self.gcs.objects.buckets["bucket"])


@dataclass(kw_only=True)
class Registry:
    """docker, as far as building and pushing goes: an image is its folder of code, kept where the machines find it."""

    vertex: VertexServer
    folder: Path
    built: dict[str, Path] = field(default_factory=dict)
    calls: list[list[str]] = field(default_factory=list)

    def __call__(self, argv: Sequence[str], *, within_s: float | None = None) -> str:
        words = list(argv)
        self.calls.append(words)
        if words[1] == "build":
            name, context = words[words.index("--tag") + 1], Path(words[-1])
            assert "ENTRYPOINT" in (context / "Dockerfile").read_text()
            place = self.folder / f"image-{len(self.built)}"
            shutil.copytree(context / "code", place)
            self.built[name] = place
            return ""
        if words[1] == "push":
            digest = f"{words[2].rpartition(':')[0]}@sha256:{len(self.built):064x}"
            self.vertex.images[digest] = Image(files={"/headway/code": self.built[words[2]]})
            return ""
        assert words[1:3] == ["image", "inspect"], words
        name = words[-1]
        if name not in self.built:
            raise NotFound(f"no such image: {name}")
        return json.dumps([{"RepoDigests": [f"{name.rpartition(':')[0]}@sha256:{len(self.built):064x}"]}])


@contextmanager
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """This shell is logged in as a service account; the machines have a metadata server."""
    vertex_messages.require()
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "GCE_", "CLOUDSDK_"))]:
        monkeypatch.delenv(name)
    folder = tmp_path / "cloud"
    folder.mkdir()
    with ExitStack() as stack:
        gcs = stack.enter_context(GcsServer("bucket"))
        gcs.tokens.add("emulator")

        def fetch(uri: str) -> bytes:
            bucket, _, key = uri.removeprefix("gs://").partition("/")
            return gcs.objects.buckets[bucket][key].content

        auth = stack.enter_context(GoogleAuthServer(gcs.tokens))
        secrets = stack.enter_context(SecretManagerServer(gcs.tokens))
        vertex = stack.enter_context(VertexServer(gcs.tokens, fetch))
        everywhere = {
            "STORAGE_EMULATOR_HOST": gcs.url,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": f"{secrets.url}/",
        }
        shell = {
            **everywhere,
            "GOOGLE_APPLICATION_CREDENTIALS": str(auth.service_account_file(folder / "account.json")),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM": f"{vertex.url}/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING": f"{vertex.url}/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_ARTIFACTREGISTRY": f"{vertex.url}/",
        }
        for name, value in shell.items():
            monkeypatch.setenv(name, value)
        host = urlsplit(auth.url).netloc
        vertex.environment = {
            **everywhere,
            "GCE_METADATA_HOST": host,
            "GCE_METADATA_IP": host,
            "HEADWAY_TIMING": "renew=0.3,restart_pause=0.1,peers=30",
        }
        _hurry(monkeypatch)
        yield Cloud(gcs=gcs, auth=auth, vertex=vertex, secrets=secrets, folder=folder)


def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Google must not be asked as often as a test's own server may be."""
    monkeypatch.setattr(target, "POLL_S", 0.2)
    monkeypatch.setattr(target, "QUERY_S", 0.5)
    monkeypatch.setattr(client, "QUERY_S", 0.4)
    monkeypatch.setattr(client, "POLL_S", 0.2)
    monkeypatch.setattr(lifecycle, "LONGEST_POLL_S", 0.3)
    monkeypatch.setattr(lifecycle, "QUEUE_POLL_S", 0.1)
