"""What a store's refusals, silences and half answers become: our errors, with what to type next, in bounded time."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from headway.core.errors import Conflict, Denied, DiskFull, NoBucket, NotThere, StoreError, Transient
from headway.core.retry import RetryPolicy
from headway.storage import ABSENT, Store, fetch_file, join, open_store, subfolders
from tests.servers.gcs import GcsServer
from tests.servers.loopback import Answer, Fault, LoopbackServer, Request
from tests.storage.conftest import QUICK
from tests.storage.test_contract import azurite_connection

PARTS = 9 << 20  # more than goes in one request


def every_verb(store: Store, tmp_path: Path) -> Iterator[Callable[[], object]]:
    large = tmp_path / "large"
    large.write_bytes(bytes(PARTS))
    yield lambda: store.read("key")
    yield lambda: store.read("key", (0, 5))
    yield lambda: store.stat("key")
    yield lambda: list(store.list())
    yield lambda: list(store.list("a/b"))
    yield lambda: subfolders(store)
    yield lambda: store.delete("key")
    yield lambda: store.write("key", b"x")
    yield lambda: store.write("key", large)
    yield lambda: store.write("key", b"x", when=ABSENT)
    yield lambda: store.write("key", b"x", when="0123")


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, str], Store]]:
    """An S3 that gives one answer to everything."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    answer = Answer()

    def open_with(status: int, code: str) -> Store:
        answer.status = status
        answer.body = f"<Error><Code>{code}</Code><Message>because</Message></Error>".encode() if code else b""
        return open_store("s3://bucket/folder", endpoint=server.url, retry=QUICK)

    with LoopbackServer(lambda request: answer) as server:
        yield open_with


# ── a bucket that is not there ───────────────────────────────────────────────


def test_a_missing_bucket_is_named_by_every_verb_with_the_command_that_makes_it(gcs: GcsServer, tmp_path: Path) -> None:
    for verb in every_verb(open_store("gs://no-such/x", retry=QUICK), tmp_path):
        with pytest.raises(NoBucket, match="gcloud storage buckets create gs://no-such"):
            verb()


def test_a_missing_s3_bucket_is_named_by_every_verb(
    moto_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    for verb in every_verb(open_store("s3://no-such/x", endpoint=moto_url, retry=QUICK), tmp_path):
        with pytest.raises(NoBucket, match="aws s3 mb s3://no-such"):
            verb()


@pytest.mark.slow
def test_a_missing_azure_container_is_named_by_every_verb(
    azurite_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite_connection(azurite_url))
    for verb in every_verb(open_store("az://no-such/x", retry=QUICK), tmp_path):
        with pytest.raises(NoBucket, match="container create --name no-such --account-name devstoreaccount1"):
            verb()


def test_a_missing_object_in_a_bucket_that_cannot_be_listed_is_just_missing(gcs: GcsServer) -> None:
    gcs.objects.forbidden = {"list"}
    with pytest.raises(NotThere) as caught:
        open_store("gs://bucket/x", retry=QUICK).stat("key")
    assert not isinstance(caught.value, NoBucket)


def test_the_bucket_is_looked_for_once_and_not_with_every_missing_object(gcs: GcsServer) -> None:
    store = open_store("gs://bucket/x", retry=QUICK)
    for _ in range(5):
        with pytest.raises(NotThere):
            store.stat("key")
    assert [request.method for request in gcs.requests] == ["HEAD", "GET", "HEAD", "HEAD", "HEAD", "HEAD"]


def test_a_key_with_the_name_of_an_error_is_not_taken_for_one(gcs: GcsServer) -> None:
    with pytest.raises(NotThere) as caught:
        open_store("gs://bucket/NoSuchBucket", retry=QUICK).read("NoSuchBucket")
    assert not isinstance(caught.value, NoBucket)


# ── no permission ────────────────────────────────────────────────────────────


def test_no_permission_is_said_with_the_command_that_grants_it(gcs: GcsServer, tmp_path: Path) -> None:
    gcs.objects.forbidden = {"read", "write", "list", "delete"}
    for verb in every_verb(open_store("gs://bucket/x", retry=QUICK), tmp_path):
        with pytest.raises(Denied, match="gcloud storage buckets add-iam-policy-binding gs://bucket"):
            verb()


def test_a_refused_write_is_not_tried_again(gcs: GcsServer) -> None:
    gcs.objects.forbidden = {"write"}
    with pytest.raises(Denied):
        open_store("gs://bucket/x", retry=QUICK).write("key", b"x")
    assert len(gcs.requests) == 1


def test_no_permission_on_s3_names_the_policy(s3: Callable[[int, str], Store], tmp_path: Path) -> None:
    for verb in every_verb(s3(403, "AccessDenied"), tmp_path):
        with pytest.raises(Denied, match=r"aws iam put-role-policy .*arn:aws:s3:::bucket/\*"):
            verb()


@pytest.mark.slow
def test_no_permission_on_azure_names_the_role(
    azurite_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = (
        b"<Error><Code>AuthorizationPermissionMismatch</Code><Message>This request is not authorized</Message></Error>"
    )
    monkeypatch.setenv("AZURE_STORAGE_KEY", "bm90IGEga2V5")
    with LoopbackServer(lambda request: Answer(status=403, body=body)) as server:
        store = open_store("az://container@account/x", endpoint=server.url, retry=QUICK)
        for verb in every_verb(store, tmp_path):
            with pytest.raises(Denied, match=r"Storage Blob Data Contributor.*containers/container"):
                verb()


def test_a_blob_under_a_lease_is_denied_and_not_called_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b"<Error><Code>LeaseIdMissing</Code><Message>There is a lease on the blob.</Message></Error>"
    monkeypatch.setenv("AZURE_STORAGE_KEY", "bm90IGEga2V5")
    with LoopbackServer(lambda request: Answer(status=409, body=body)) as server:
        store = open_store("az://container@account/x", endpoint=server.url, retry=QUICK)
        with pytest.raises(Denied, match="There is a lease"):
            store.write("key", b"x")


def test_credentials_that_are_no_good_say_how_to_log_in(gcs: GcsServer, s3: Callable[[int, str], Store]) -> None:
    gcs.tokens.clear()
    with pytest.raises(Denied, match="gcloud auth application-default login"):
        open_store("gs://bucket/x", retry=QUICK).read("key")
    for status, code in ((403, "InvalidAccessKeyId"), (400, "ExpiredToken"), (403, "SignatureDoesNotMatch")):
        with pytest.raises(Denied, match="aws sso login"):
            s3(status, code).read("key")


def test_a_wrong_clock_is_called_a_wrong_clock(s3: Callable[[int, str], Store]) -> None:
    with pytest.raises(Denied, match="timedatectl"):
        s3(403, "RequestTimeTooSkewed").read("key")


def test_another_region_says_which_variable_to_set(s3: Callable[[int, str], Store]) -> None:
    with pytest.raises(StoreError, match="AWS_REGION"):
        s3(301, "PermanentRedirect").read("key")
    with pytest.raises(StoreError, match="AWS_REGION"):
        s3(400, "AuthorizationHeaderMalformed").read("key")


def test_a_full_store_is_a_full_disk(s3: Callable[[int, str], Store]) -> None:
    with pytest.raises(DiskFull):
        s3(507, "XMinioStorageFull").write("key", b"x")


# ── try again ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [429, 500, 502, 503, 408])
def test_a_hiccup_is_not_noticed(gcs: GcsServer, status: int) -> None:
    store = open_store("gs://bucket/x", retry=QUICK)
    gcs.faults.append(Fault(kind="refuse", status=status, times=2))
    store.write("key", b"text")
    gcs.faults.append(Fault(kind="refuse", status=status, times=2))
    assert store.read("key") == b"text"


@pytest.mark.parametrize("status", [429, 503])
def test_a_store_that_stays_busy_is_transient_after_so_many_tries(gcs: GcsServer, status: int, tmp_path: Path) -> None:
    store = open_store("gs://bucket/x", retry=QUICK)
    gcs.faults.append(Fault(kind="refuse", status=status, times=1000))
    with pytest.raises(Transient):
        store.read("key")
    assert len(gcs.requests) == QUICK.tries
    for verb in every_verb(store, tmp_path):
        with pytest.raises(Transient):
            verb()


def test_s3_asks_to_repeat_a_condition_that_met_another(s3: Callable[[int, str], Store]) -> None:
    with pytest.raises(Transient):
        s3(409, "ConditionalRequestConflict").write("key", b"x", when=ABSENT)


def test_a_server_that_is_down_is_transient_on_every_cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AZURE_STORAGE_KEY", "bm90IGEga2V5")
    nobody = f"http://127.0.0.1:{unused_port()}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", nobody)
    for store in (
        open_store("gs://bucket/x", retry=QUICK),
        open_store("s3://bucket/x", endpoint=nobody, retry=QUICK),
        open_store("az://container@account/x", endpoint=nobody, retry=QUICK),
    ):
        for verb in every_verb(store, tmp_path):
            with pytest.raises(Transient):
                verb()


def test_a_server_that_does_not_answer_is_transient_in_bounded_time(gcs: GcsServer) -> None:
    gcs.faults.append(Fault(kind="hang", times=1000))
    hasty = RetryPolicy(tries=2, total_s=5, first_pause_s=0.01, connect_s=1, request_s=0.2)
    with pytest.raises(Transient):
        open_store("gs://bucket/x", retry=hasty).read("key")
    assert len(gcs.requests) == 2


def test_half_an_answer_is_asked_for_again(gcs: GcsServer) -> None:
    store = open_store("gs://bucket/x", retry=QUICK)
    store.write("key", b"0123456789" * 1000)
    gcs.faults.append(Fault(kind="cut", method="GET", times=2))
    assert store.read("key") == b"0123456789" * 1000


def test_half_an_answer_is_never_taken_for_a_whole_one(gcs: GcsServer) -> None:
    store = open_store("gs://bucket/x", retry=QUICK)
    store.write("key", b"0123456789" * 1000)
    gcs.faults.append(Fault(kind="cut", method="GET", times=1000))
    for span in (None, (0, 5000)):
        with pytest.raises(Transient):
            store.read("key", span)
    with pytest.raises(Transient):
        list(store.list())


# ── conditional writes whose answer is lost ──────────────────────────────────


@pytest.mark.parametrize("kind", ["lose", "drop"])
def test_a_claim_whose_answer_was_lost_is_still_ours(gcs: GcsServer, kind: str) -> None:
    store = open_store("gs://bucket/x", retry=QUICK)
    gcs.faults.append(Fault(kind=kind, method="PUT"))  # type: ignore[arg-type]
    version = store.write("claim", b"mine", when=ABSENT)
    assert store.stat("claim").version == version
    gcs.faults.append(Fault(kind=kind, method="PUT"))  # type: ignore[arg-type]
    store.write("claim", b"mine, renewed", when=version)
    assert store.read("claim") == b"mine, renewed"


def test_a_claim_that_failed_and_was_then_taken_is_a_conflict(gcs: GcsServer) -> None:
    """Also where the other wrote the very same bytes: the stamp tells them apart."""
    ours = open_store("gs://bucket/x", retry=QUICK)
    theirs = open_store("gs://bucket/x", retry=QUICK)
    gcs.faults.append(Fault(kind="refuse", meanwhile=lambda: theirs.write("claim", b"same", when=ABSENT)))
    with pytest.raises(Conflict):
        ours.write("claim", b"same", when=ABSENT)


@pytest.mark.slow
def test_a_lost_answer_on_s3_and_azure_is_found_again_too(
    moto_url: str, azurite_url: str, monkeypatch: pytest.MonkeyPatch, folder_name: str
) -> None:
    from tests.storage.test_contract import make_azure_container, make_s3_bucket

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite_connection(azurite_url))
    make_s3_bucket(moto_url)
    make_azure_container(azurite_url)
    for url, target in ((f"s3://bucket/{folder_name}", moto_url), (f"az://bucket/{folder_name}", azurite_url)):
        with LoopbackServer(forward_to(target)) as proxy:
            account = "/devstoreaccount1" if url.startswith("az") else ""
            store = open_store(url, endpoint=proxy.url + account, retry=QUICK)
            proxy.faults.append(Fault(kind="lose", method="PUT"))
            version = store.write("claim", b"mine", when=ABSENT)
            proxy.faults.append(Fault(kind="drop", method="PUT"))
            store.write("claim", b"renewed", when=version)
            assert store.read("claim") == b"renewed"


# ── large transfers ──────────────────────────────────────────────────────────


def test_a_part_that_fails_is_sent_again_and_not_the_whole(gcs: GcsServer) -> None:
    store = open_store("gs://bucket/x", retry=QUICK)
    gcs.faults.append(Fault(kind="refuse", method="PUT", times=2))
    content = os.urandom(2 * PARTS)
    store.write("large", content)
    assert store.read("large") == content
    puts = [request for request in gcs.requests if request.method == "PUT"]
    assert len(puts) == 5  # three parts, and two again


def test_a_large_write_that_fails_leaves_what_was_there(gcs: GcsServer) -> None:
    store = open_store("gs://bucket/x", retry=QUICK)
    store.write("large", b"before")
    gcs.faults.append(Fault(kind="refuse", method="PUT", times=1000))
    with pytest.raises(Transient):
        store.write("large", os.urandom(2 * PARTS))
    gcs.faults.clear()
    assert store.read("large") == b"before"
    if version("obstore") >= "0.12":  # older ones, on Python 3.10, leave that to the bucket's lifecycle rule
        assert gcs.objects.uploads == {}  # no parts are left to be paid for


def test_a_large_read_is_all_of_one_version(gcs: GcsServer) -> None:
    """Replaced while it is read: read again, never a mixture."""
    store = open_store("gs://bucket/x", retry=QUICK)
    first, second = bytes(3 * PARTS), b"\xff" * (3 * PARTS)
    store.write("large", first)
    gcs.faults.append(Fault(kind="none", header="if-match", meanwhile=lambda: store.write("large", second)))
    assert store.read("large") == second


def test_a_large_read_asks_for_the_rest_before_its_first_part_is_here(
    gcs: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    store, content = open_store("gs://bucket/run", retry=QUICK), os.urandom(2 * PARTS)
    store.write("large", content)
    asked_for_more, get = threading.Event(), obstore.get

    class Slow:
        """An answer whose bytes come only once another part was asked for."""

        def __init__(self, found: Any) -> None:
            self.meta, self._found = found.meta, found

        def bytes(self) -> Any:
            assert asked_for_more.wait(30), "the second part was not asked for"
            return self._found.bytes()

    def asked(client: Any, key: str, *, options: Any) -> Any:
        found = get(client, key, options=options)
        if options["range"][0] == 0:
            return Slow(found)
        asked_for_more.set()
        return found

    monkeypatch.setattr(obstore, "get", asked)
    assert store.read("large") == content


def test_an_object_replaced_while_it_is_fetched_leaves_no_file(gcs: GcsServer, tmp_path: Path) -> None:
    store = open_store("gs://bucket/x", retry=QUICK)
    store.write("large", bytes(PARTS))

    def replace_it(done: int, total: int) -> None:
        if done == 0:
            store.write("large", b"\xff" * PARTS)

    with pytest.raises(Transient, match="replaced"):
        fetch_file(store, "large", tmp_path / "file", progress=replace_it)
    assert os.listdir(tmp_path) == []


# ── processes ────────────────────────────────────────────────────────────────


def test_a_forked_child_is_refused_and_does_not_hang(gcs: GcsServer) -> None:
    script = """
import os, sys
from headway.storage import open_store
store = open_store("gs://bucket/x")
store.write("key", b"x")
child = os.fork()
if child == 0:
    try:
        store.read("key")
    except Exception as error:
        os._exit(7 if "spawn" in str(error) else 1)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ended = subprocess.run([sys.executable, "-c", script], timeout=60, check=False, env=os.environ)
    assert ended.returncode == 7


def test_a_store_below_another_is_the_same_place(gcs: GcsServer) -> None:
    store = open_store("gs://bucket/runs/", retry=QUICK)
    store.write("r1/plan.json", b"{}")
    assert open_store(join(store.url, "r1")).read("plan.json") == b"{}"
    assert store.url == "gs://bucket/runs"


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def forward_to(url: str) -> Callable[[Request], Answer]:
    """A proxy that keeps the Host header, which signatures cover."""
    unlike = ("connection", "transfer-encoding", "date", "server")

    def forward(request: Request) -> Answer:
        connection = http.client.HTTPConnection(url.partition("://")[2], timeout=30)
        query = f"?{urlencode(request.query)}" if request.query else ""
        connection.request(request.method, request.path + query, request.body, dict(request.headers))
        got = connection.getresponse()
        headers = {name: value for name, value in got.getheaders() if name.lower() not in unlike}
        answer = Answer(status=got.status, headers=headers, body=got.read())
        connection.close()
        return answer

    return forward
