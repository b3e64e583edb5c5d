"""A bucket in another region than the job is found before it is paid for at every epoch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.planning.cost import far_buckets, is_near
from headway.spec import Data, Job, Source
from headway.spec.model import Export
from tests.servers.google_auth import GoogleAuthServer
from tests.servers.loopback import Answer, LoopbackServer, Request

JOB = Job(
    name="j", script="t.py", outputs="gs://runs-here/runs", export=Export(to="gs://far-away/models"),
    data=Data(train=(Source(source="gs://wide/coco"), Source(source="/data/local"))),
)  # fmt: skip
EAST = {"region": "us-east1"}


class Buckets(LoopbackServer):
    """The one call that tells where a bucket is."""

    def __init__(self, tokens: set[str]) -> None:
        super().__init__(self._serve)
        self.tokens = tokens
        self.where = {"runs-here": "US-EAST1", "far-away": "EUROPE-WEST4", "wide": "US"}

    def _serve(self, request: Request) -> Answer:
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
            return Answer(status=401)
        name = request.path.removeprefix("/storage/v1/b/")
        if request.method != "GET" or request.query != {"fields": "location"} or "/" in name:
            return Answer(status=501)
        if name not in self.where:
            return Answer(status=404)
        body = json.dumps({"location": self.where[name]}).encode()
        return Answer(headers={"Content-Type": "application/json"}, body=body)


@pytest.fixture
def buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Buckets]:
    pytest.importorskip("google.auth", reason="google-auth is not installed")
    tokens: set[str] = set()
    with GoogleAuthServer(tokens) as auth, Buckets(tokens) as server:
        key = auth.service_account_file(tmp_path / "key.json")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        assert isinstance(server, Buckets)
        yield server


def test_only_the_bucket_in_another_region_is_named(buckets: Buckets) -> None:
    (line,) = far_buckets(JOB, "vertex", EAST)
    assert line.startswith("gs://far-away is in EUROPE-WEST4, and the job runs in us-east1")
    assert len(buckets.requests) == 3


def test_a_bucket_that_cannot_be_asked_about_stops_nothing(buckets: Buckets) -> None:
    buckets.where.pop("wide")
    lines = far_buckets(JOB, "kubernetes", {"location": "us-east1-c"})
    assert any("is unknown: there is no bucket gs://wide" in line for line in lines)


def test_places_that_are_not_googles_are_not_asked_about(buckets: Buckets) -> None:
    assert far_buckets(JOB, "ssh", {}) == []
    assert far_buckets(JOB, "kubernetes", {"platform": "plain"}) == []
    assert buckets.requests == []


@pytest.mark.parametrize(
    ("location", "region", "covers"),
    [
        ("US-EAST1", "us-east1", True),
        ("US-EAST1", "us-east4", False),
        ("US", "us-west1", True),
        ("EU", "europe-west4", True),
        ("EU", "us-east1", False),
        ("NAM4", "us-central1", True),
        ("NAM4", "us-west1", False),
    ],
)
def test_a_wide_location_is_near_all_of_its_regions(location: str, region: str, covers: bool) -> None:
    assert is_near(location, region) is covers
