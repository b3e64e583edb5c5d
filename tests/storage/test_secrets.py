"""References resolve to values only when asked, and values do not reach what is printed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.core.errors import BadInput, Denied, Transient
from headway.storage.redaction import redact
from headway.storage.secrets import parse, resolve
from tests.servers.google_auth import EMAIL, GoogleAuthServer
from tests.servers.kube_secrets import KubeSecretsServer
from tests.servers.loopback import Fault
from tests.servers.secret_manager import SecretManagerServer


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "CLOUDSDK_", "GCE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.parametrize(
    "text",
    [
        "env:TOKEN",
        "file:/run/secret",
        "file:~/key",
        "gcp-sm://name",
        "gcp-sm://p/name/3",
        "aws-sm://a/b#c",
        "k8s://s/k",
    ],
)
def test_a_reference_reads_back_as_it_was_written(text: str) -> None:
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "hunter2-the-password", "env:", "vault://x", "k8s://only", "k8s://a/b/c", "ENV:X"]
)
def test_what_is_no_reference_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(BadInput, match="env:NAME") as caught:
        parse(text)
    assert "hunter2" not in str(caught.value)


def test_a_variable_is_read_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "value")
    assert resolve("env:A_TOKEN") == "value"
    monkeypatch.delenv("A_TOKEN")
    with pytest.raises(BadInput, match="export A_TOKEN"):
        resolve("env:A_TOKEN")


def test_a_file_is_read_without_the_line_break_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("-----BEGIN\nline\n")
    assert resolve(f"file:{tmp_path}/key") == "-----BEGIN\nline"


def test_a_file_that_cannot_be_the_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "large").write_bytes(b"x" * 70_000)
    (tmp_path / "empty").write_bytes(b"\n")
    for name, reason in (
        ("missing", "cannot be read"),
        ("binary", "not text"),
        ("large", "larger"),
        ("empty", "is empty"),
    ):
        with pytest.raises(BadInput, match=reason):
            resolve(f"file:{tmp_path}/{name}")


# ── Kubernetes ───────────────────────────────────────────────────────────────


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[KubeSecretsServer]:
    with KubeSecretsServer() as server:
        (tmp_path / "kubeconfig").write_text(server.kubeconfig())
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        monkeypatch.delenv("HEADWAY_NAMESPACE", raising=False)
        yield server


def test_a_secret_of_a_cluster_is_read_by_its_key(kube: KubeSecretsServer) -> None:
    kube.secrets["default", "wandb"] = {"key": b"value-of-wandb", "other": b"x"}
    assert resolve("k8s://wandb/key") == "value-of-wandb"


def test_the_namespace_is_the_one_that_was_chosen(kube: KubeSecretsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    kube.secrets["ml", "wandb"] = {"key": b"of-ml"}
    with pytest.raises(BadInput, match="create secret generic wandb --from-literal=key="):
        resolve("k8s://wandb/key")
    monkeypatch.setenv("HEADWAY_NAMESPACE", "ml")
    assert resolve("k8s://wandb/key") == "of-ml"


def test_a_key_that_is_not_there_names_those_that_are(kube: KubeSecretsServer) -> None:
    kube.secrets["default", "wandb"] = {"api-key": b"hidden-value"}
    with pytest.raises(BadInput, match="one of: api-key") as caught:
        resolve("k8s://wandb/key")
    assert "hidden-value" not in str(caught.value)


def test_a_secret_that_may_not_be_read_says_which_grant_is_missing(kube: KubeSecretsServer) -> None:
    kube.forbidden = True
    with pytest.raises(Denied, match="--verb=get --resource=secrets"):
        resolve("k8s://wandb/key")


def test_without_a_cluster_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(BadInput, match="no cluster is known here"):
        resolve("k8s://wandb/key")


# ── Google ───────────────────────────────────────────────────────────────────


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SecretManagerServer]:
    pytest.importorskip("google.auth", reason="google-auth is not installed")
    tokens: set[str] = set()
    with GoogleAuthServer(tokens) as auth, SecretManagerServer(tokens) as manager:
        key = auth.service_account_file(tmp_path / "key.json")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER", f"{manager.url}/")
        manager.secrets["project", "wandb-key"] = [b"old", "new ü".encode()]
        manager.secrets["other", "name"] = [b"theirs"]
        yield manager


def test_a_secret_of_google_is_fetched_with_its_own_credentials(google: SecretManagerServer) -> None:
    assert resolve("gcp-sm://wandb-key") == "new ü"
    assert resolve("gcp-sm://project/wandb-key/1") == "old"
    assert resolve("gcp-sm://other/name") == "theirs"


def test_a_secret_that_google_does_not_have_says_how_to_make_it(google: SecretManagerServer) -> None:
    with pytest.raises(BadInput, match="gcloud secrets create missing --project=project"):
        resolve("gcp-sm://missing")
    with pytest.raises(BadInput, match="no such version"):
        resolve("gcp-sm://project/wandb-key/9")
    with pytest.raises(BadInput, match="does not name a secret"):
        resolve("gcp-sm://project/../other/name")


def test_a_secret_that_may_not_be_read_says_how_to_grant_it(google: SecretManagerServer) -> None:
    google.forbidden = True
    expected = f"secrets add-iam-policy-binding wandb-key --project=project --member=serviceAccount:{EMAIL}"
    with pytest.raises(Denied, match=expected):
        resolve("gcp-sm://wandb-key")


def test_a_busy_secret_manager_is_asked_again(google: SecretManagerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    google.faults.append(Fault(kind="refuse", status=503, times=2))
    assert resolve("gcp-sm://wandb-key") == "new ü"
    google.faults.append(Fault(kind="drop", times=100))
    with pytest.raises(Transient):
        resolve("gcp-sm://wandb-key")


# ── Amazon ───────────────────────────────────────────────────────────────────


def test_secrets_of_amazon_are_fetched_whole_or_by_field(moto_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    boto3 = pytest.importorskip("boto3")
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    with pytest.raises((Denied, BadInput)):
        resolve("aws-sm://team/key")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with pytest.raises(Denied, match="aws sso login"):
        resolve("aws-sm://team/key")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    client = boto3.client("secretsmanager", region_name="us-east-1")
    client.create_secret(Name="team/key", SecretString='{"wandb": "w-value", "other": 5}')
    client.create_secret(Name="binary", SecretBinary=b"b-value")
    assert resolve("aws-sm://team/key") == '{"wandb": "w-value", "other": 5}'
    assert resolve("aws-sm://team/key#wandb") == "w-value"
    assert resolve("aws-sm://binary") == "b-value"
    with pytest.raises(BadInput, match="has no such field"):
        resolve("aws-sm://team/key#nothing")
    with pytest.raises(BadInput, match="aws secretsmanager create-secret --name missing"):
        resolve("aws-sm://missing")


# ── redaction ────────────────────────────────────────────────────────────────


def test_values_are_taken_out_of_text_in_every_form_they_take() -> None:
    value = 'pass"word\nsecond line'
    text = 'raw pass"word\nsecond line; json "pass\\"word\\nsecond line"; line "  second line  "'
    assert redact(text, [value]) == 'raw ***; json "***"; line "  ***  "'


def test_a_value_within_another_leaves_no_rest() -> None:
    assert redact("abcdef-long abcdef", ["abcdef", "abcdef-long"]) == "*** ***"


def test_values_too_short_to_be_secret_do_not_black_out_words() -> None:
    assert redact("a cat sat", ["a", "", "at"]) == "a cat sat"
