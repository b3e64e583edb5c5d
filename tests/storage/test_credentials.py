"""Each cloud's own chain of credentials, driven for real: Google's library, boto3 and azure-identity get the tokens."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.core.errors import BadInput, Denied, MissingExtra, Transient
from headway.core.retry import RetryPolicy
from headway.storage import open_store
from tests.servers.gcs import GcsServer
from tests.servers.google_auth import EMAIL, GoogleAuthServer
from tests.servers.loopback import Answer, Fault, LoopbackServer, Request
from tests.storage.conftest import QUICK

EMPTY_LISTING = b"<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated></ListBucketResult>"
EMPTY_AZURE_LISTING = b"<EnumerationResults><Blobs></Blobs><NextMarker></NextMarker></EnumerationResults>"


@pytest.fixture
def google(tmp_path: Path) -> Iterator[tuple[GcsServer, GoogleAuthServer]]:
    pytest.importorskip("google.auth", reason="google-auth is not installed")
    with GcsServer("bucket") as gcs:
        gcs.tokens.clear()  # only what the token server issues is good
        with GoogleAuthServer(gcs.tokens) as auth:
            yield gcs, auth


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """As if it were not installed."""
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)


# ── Google ───────────────────────────────────────────────────────────────────


def test_a_service_accounts_key_opens_the_bucket(
    google: tuple[GcsServer, GoogleAuthServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcs, auth = google
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(auth.service_account_file(tmp_path / "key.json")))
    store = open_store("gs://bucket/x", endpoint=gcs.url, retry=QUICK)
    store.write("k", b"x")
    assert store.read("k") == b"x"
    assert open_store("gs://bucket/x/y", endpoint=gcs.url, retry=QUICK).write("k", b"y")
    assert len(auth.issued) == 1  # one token for all requests of all stores


@pytest.mark.parametrize("impersonate", [False, True])
def test_workload_identity_federation_opens_the_bucket(
    google: tuple[GcsServer, GoogleAuthServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impersonate: bool
) -> None:
    gcs, auth = google
    path = auth.federation_file(tmp_path / "federation.json", impersonate=impersonate)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    store = open_store("gs://bucket/x", endpoint=gcs.url, retry=QUICK)
    store.write("k", b"x")
    assert store.read("k") == b"x"
    assert len(auth.issued) == (2 if impersonate else 1)


def test_a_metadata_server_that_is_not_up_yet_is_asked_again(
    google: tuple[GcsServer, GoogleAuthServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    gcs, auth = google
    host = auth.url.partition("://")[2]
    monkeypatch.setenv("GCE_METADATA_HOST", host)
    monkeypatch.setenv("GCE_METADATA_IP", host)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # Google's library pauses for whole seconds
    auth.faults.append(Fault(kind="drop", times=7))  # as in the first seconds of a pod
    store = open_store("gs://bucket/x", endpoint=gcs.url, retry=RetryPolicy(tries=8, first_pause_s=0.01))
    store.write("k", b"x")
    assert store.read("k") == b"x"


def test_a_token_about_to_expire_is_renewed(
    google: tuple[GcsServer, GoogleAuthServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcs, auth = google
    auth.lifetime_s = 30
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(auth.service_account_file(tmp_path / "key.json")))
    store = open_store("gs://bucket/x", endpoint=gcs.url, retry=QUICK)
    store.write("k", b"x")
    gcs.tokens.clear()  # the first has expired
    threading.Event().wait(0.15)  # obstore asks at most ten times a second
    assert store.read("k") == b"x"
    assert len(auth.issued) >= 2


def test_a_missing_permission_names_the_account_that_lacks_it(
    google: tuple[GcsServer, GoogleAuthServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcs, auth = google
    gcs.objects.forbidden = {"write"}
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(auth.service_account_file(tmp_path / "key.json")))
    with pytest.raises(Denied, match=f"--member=serviceAccount:{EMAIL} --role=roles/storage.objectUser"):
        open_store("gs://bucket/x", endpoint=gcs.url, retry=QUICK).write("k", b"x")


def test_a_key_that_google_refuses_says_how_to_log_in(
    google: tuple[GcsServer, GoogleAuthServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcs, auth = google
    refusal = b'{"error": "invalid_grant", "error_description": "Invalid JWT Signature."}'
    auth.faults.append(Fault(kind="refuse", status=400, times=100, body=refusal))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(auth.service_account_file(tmp_path / "key.json")))
    with pytest.raises(Denied, match="gcloud auth application-default login"):
        open_store("gs://bucket/x", endpoint=gcs.url, retry=QUICK).read("k")


def test_no_credentials_say_how_to_log_in_at_once(
    google: tuple[GcsServer, GoogleAuthServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(Denied, match="gcloud auth application-default login"):
        open_store("gs://bucket/x", retry=QUICK).read("k")


def test_a_file_of_credentials_that_is_none_is_not_waited_for(
    google: tuple[GcsServer, GoogleAuthServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key.json").write_text("not json")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with pytest.raises(Denied, match="no Google credentials"):
        open_store("gs://bucket/x", retry=QUICK).read("k")


def test_a_token_server_out_of_reach_is_transient(
    google: tuple[GcsServer, GoogleAuthServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcs, auth = google
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(auth.service_account_file(tmp_path / "key.json")))
    auth.faults.append(Fault(kind="drop", times=1000))
    hasty = RetryPolicy(tries=2, first_pause_s=0.01)
    with pytest.raises(Transient, match="token server"):
        open_store("gs://bucket/x", endpoint=gcs.url, retry=hasty).read("k")


def test_without_googles_library_federation_says_what_to_install(
    google: tuple[GcsServer, GoogleAuthServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcs, auth = google
    path = auth.federation_file(tmp_path / "federation.json", impersonate=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    without(monkeypatch, "google.auth")
    with pytest.raises(MissingExtra, match=r"extra \[gcp\]"):
        open_store("gs://bucket/x", endpoint=gcs.url, retry=QUICK).read("k")


# ── Amazon ───────────────────────────────────────────────────────────────────


@pytest.fixture
def s3() -> Iterator[LoopbackServer]:
    with LoopbackServer(lambda request: Answer(body=EMPTY_LISTING)) as server:
        yield server


def test_a_profile_of_the_shared_file_signs_the_requests(
    s3: LoopbackServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("boto3")
    (tmp_path / "credentials").write_text("[team]\naws_access_key_id = AKIDOFTEAM\naws_secret_access_key = s\n")
    (tmp_path / "config").write_text("[profile team]\nregion = eu-west-3\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "team")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.url)
    assert list(open_store("s3://bucket/x", retry=QUICK).list()) == []
    assert "Credential=AKIDOFTEAM/" in s3.requests[0].headers["authorization"]
    assert "/eu-west-3/s3/" in s3.requests[0].headers["authorization"]


def test_an_endpoint_given_by_hand_is_stronger_than_the_variable(
    s3: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    assert list(open_store("s3://bucket/x", endpoint=s3.url, retry=QUICK).list()) == []


def test_no_aws_credentials_say_how_to_log_in(s3: LoopbackServer) -> None:
    pytest.importorskip("boto3")
    with pytest.raises(Denied, match="aws sso login"):
        open_store("s3://bucket/x", endpoint=s3.url, retry=QUICK).read("k")
    assert s3.requests == []


def test_without_boto3_variables_work_and_a_profile_says_what_to_install(
    s3: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "boto3")
    monkeypatch.setenv("AWS_PROFILE", "team")
    with pytest.raises(MissingExtra, match=r"extra \[aws\]"):
        open_store("s3://bucket/x", endpoint=s3.url, retry=QUICK).read("k")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOFENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    assert list(open_store("s3://bucket/x", endpoint=s3.url, retry=QUICK).list()) == []
    assert "Credential=AKIDOFENV/" in s3.requests[0].headers["authorization"]


# ── Azure ────────────────────────────────────────────────────────────────────


def azure_answer(request: Request) -> Answer:
    if request.path == "/identity":
        assert request.headers["x-identity-header"] == "secret of the machine"
        token = (
            b'{"access_token": "managed-token", "expires_on": "4102444800", "resource": "r", "token_type": "Bearer"}'
        )
        return Answer(headers={"Content-Type": "application/json"}, body=token)
    return Answer(body=EMPTY_AZURE_LISTING)


@pytest.fixture
def azure() -> Iterator[LoopbackServer]:
    with LoopbackServer(azure_answer) as server:
        yield server


def test_a_managed_identity_opens_the_container(azure: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("azure.identity", reason="azure-identity is not installed")
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{azure.url}/identity")
    monkeypatch.setenv("IDENTITY_HEADER", "secret of the machine")
    assert list(open_store("az://container@account/x", endpoint=azure.url, retry=QUICK).list()) == []
    assert azure.requests[-1].headers["authorization"] == "Bearer managed-token"


def test_the_account_is_told_by_the_url_or_a_variable(azure: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", "bm90IGEga2V5")
    with pytest.raises(BadInput, match="which storage account"):
        open_store("az://container/x", endpoint=azure.url)
    list(open_store("az://container@first/x", endpoint=azure.url, retry=QUICK).list())
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "second")
    list(open_store("az://container/x", endpoint=azure.url, retry=QUICK).list())
    signed_by = [request.headers["authorization"].partition(":")[0] for request in azure.requests]
    assert signed_by == ["SharedKey first", "SharedKey second"]


def test_a_sas_token_goes_with_every_request(azure: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2024-01-01&sig=abc%3D")
    list(open_store("az://container@account/x", endpoint=azure.url, retry=QUICK).list())
    assert azure.requests[0].query["sig"] == "abc="
