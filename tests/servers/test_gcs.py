"""The strict GCS server, checked with Google's own client, and for its strictness."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers.gcs import TOKEN, GcsServer

storage = pytest.importorskip("google.cloud.storage", reason="google-cloud-storage is not installed")
exceptions = pytest.importorskip("google.api_core.exceptions")


@pytest.fixture
def gcs() -> Iterator[GcsServer]:
    with GcsServer("bucket", page=4) as server:
        yield server


@pytest.fixture
def client(gcs: GcsServer) -> Any:
    from google.oauth2.credentials import Credentials

    return storage.Client(project="p", credentials=Credentials(TOKEN), client_options={"api_endpoint": gcs.url})


def request(gcs: GcsServer, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"") -> Any:
    connection = http.client.HTTPConnection(gcs.url.partition("://")[2], timeout=10)
    connection.request(method, path, body, {"Authorization": f"Bearer {TOKEN}", **(headers or {})})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


def test_googles_client_writes_and_reads(client: Any) -> None:
    blob = client.bucket("bucket").blob("a folder/ünï#?.bin")
    blob.upload_from_string(b"\x00 content \r\n--\r\n", content_type="application/x-test")
    again = client.bucket("bucket").get_blob("a folder/ünï#?.bin")
    assert again.download_as_bytes() == b"\x00 content \r\n--\r\n"
    assert (again.size, again.content_type) == (16, "application/x-test")
    assert again.download_as_bytes(start=2, end=8) == b"content"


def test_googles_client_uploads_in_pieces(client: Any, tmp_path: Any) -> None:
    content = bytes(range(256)) * 4096 + b"rest"
    (tmp_path / "large").write_bytes(content)
    blob = client.bucket("bucket").blob("large", chunk_size=256 << 10)
    blob.upload_from_filename(tmp_path / "large")
    assert client.bucket("bucket").blob("large").download_as_bytes() == content


def test_googles_client_meets_preconditions(client: Any) -> None:
    blob = client.bucket("bucket").blob("k")
    blob.upload_from_string(b"1", if_generation_match=0)
    first = blob.generation
    with pytest.raises(exceptions.PreconditionFailed):
        client.bucket("bucket").blob("k").upload_from_string(b"2", if_generation_match=0)
    blob.upload_from_string(b"2", if_generation_match=first)
    assert blob.generation > first
    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_string(b"3", if_generation_match=first)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.delete(if_generation_match=first)
    assert blob.download_as_bytes() == b"2"


def test_googles_client_lists_all_pages_and_folders(client: Any) -> None:
    bucket = client.bucket("bucket")
    for number in range(10):
        bucket.blob(f"many/{number}").upload_from_string(b"x")
    bucket.blob("top").upload_from_string(b"x")
    assert [blob.name for blob in client.list_blobs("bucket", prefix="many/")] == [f"many/{n}" for n in range(10)]
    listing = client.list_blobs("bucket", delimiter="/")
    assert [blob.name for blob in listing] == ["top"]
    assert listing.prefixes == {"many/"}


def test_googles_client_sees_what_is_missing(client: Any) -> None:
    assert client.bucket("bucket").get_blob("missing") is None
    with pytest.raises(exceptions.NotFound, match="bucket does not exist"):
        client.bucket("no-such").blob("k").upload_from_string(b"x")
    with pytest.raises(exceptions.NotFound):
        client.get_bucket("no-such")
    assert client.create_bucket("made").exists()


def test_both_apis_show_the_same_object(gcs: GcsServer, client: Any) -> None:
    client.bucket("bucket").blob("k").upload_from_string(b"text")
    answer, content = request(gcs, "GET", "/bucket/k")
    assert content == b"text"
    assert answer.headers["x-goog-generation"] == str(client.bucket("bucket").get_blob("k").generation)


def test_nobody_comes_in_without_a_token(gcs: GcsServer) -> None:
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer"}, {"Authorization": "Bearer wrong"}):
        for path in ("/bucket/k", "/storage/v1/b/bucket/o"):
            assert request(gcs, "GET", path, headers)[0].status == 401


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("PUT", "/bucket/k?acl", {}),
        ("PUT", "/bucket/k", {"x-goog-copy-source": "bucket/other"}),
        ("PUT", "/bucket/k", {"x-goog-if-metageneration-match": "1"}),
        ("GET", "/bucket?list-type=2&fetch-owner=true", {}),
        ("GET", "/bucket", {}),
        ("PATCH", "/bucket/k", {}),
        ("DELETE", "/bucket", {}),
        ("GET", "/storage/v1/b/bucket/o?versions=true", {}),
        ("GET", "/storage/v1/b/bucket/o?ifMetagenerationMatch=1", {}),
        ("PATCH", "/storage/v1/b/bucket/o/k", {}),
        ("GET", "/storage/v1/b/bucket/iam", {}),
        ("POST", "/upload/storage/v1/b/bucket/o?uploadType=media&name=k", {}),
    ],
)
def test_what_it_does_not_know_it_refuses_aloud(
    gcs: GcsServer, method: str, path: str, headers: dict[str, str]
) -> None:
    assert request(gcs, method, path, headers)[0].status == 501
    assert gcs.objects.buckets["bucket"] == {}


def test_a_range_that_cannot_be_had_is_refused(gcs: GcsServer) -> None:
    request(gcs, "PUT", "/bucket/k", body=b"0123456789")
    answer, content = request(gcs, "GET", "/bucket/k", {"Range": "bytes=4-6"})
    assert (answer.status, content, answer.headers["Content-Range"]) == (206, b"456", "bytes 4-6/10")
    assert request(gcs, "GET", "/bucket/k", {"Range": "bytes=10-"})[0].status == 416
    assert request(gcs, "GET", "/bucket/k", {"Range": "bytes=0-1,3-4"})[0].status == 501


def test_a_part_that_is_too_small_or_not_listed_is_refused(gcs: GcsServer) -> None:
    _, content = request(gcs, "POST", "/bucket/k?uploads")
    upload = content.decode().partition("<UploadId>")[2].partition("<")[0]
    tags = []
    for number in (1, 2):
        answer, _ = request(gcs, "PUT", f"/bucket/k?partNumber={number}&uploadId={upload}", body=b"small")
        tags.append(answer.headers["ETag"])
    parts = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{tag}</ETag></Part>" for n, tag in enumerate(tags, 1))
    body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
    answer, content = request(gcs, "POST", f"/bucket/k?uploadId={upload}", body=body)
    assert (answer.status, b"EntityTooSmall" in content) == (400, True)
    answer, content = request(gcs, "POST", f"/bucket/k?uploadId={upload}", body=body.replace(tags[0].encode(), b'"x"'))
    assert (answer.status, b"InvalidPart" in content) == (400, True)
    assert gcs.objects.buckets["bucket"] == {}
