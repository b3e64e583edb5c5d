"""Secrets of every kind in one real run: they reach the script, and stand nowhere afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Headway
from tests.cli.conftest import headway as headway
from tests.servers.google_auth import GoogleAuthServer
from tests.servers.kube_secrets import KubeSecretsServer
from tests.servers.secret_manager import SecretManagerServer

CANARIES = {kind: f"canary-{kind}-41d7-never-to-be-seen" for kind in ("env", "file", "google", "kube", "amazon")}
SCRIPT = """\
import os
for kind in ("ENV", "FILE", "GOOGLE", "KUBE", "AMAZON"):
    value = os.environ["TOKEN_" + kind]
    print(kind, len(value), value)
print(open(os.environ["TOKEN_AS_FILE"]).read())
raise SystemExit(5)
"""
JOB = """\
name: job
script: train.py
retries: 0
secrets:
  TOKEN_ENV: env:OUTER_TOKEN
  TOKEN_FILE: file:{folder}/token
  TOKEN_GOOGLE: gcp-sm://project/wandb
  TOKEN_KUBE: k8s://wandb/key
  TOKEN_AMAZON: aws-sm://wandb
  TOKEN_AS_FILE: {{ref: env:OUTER_TOKEN, as: file}}
"""


@pytest.fixture
def vaults(tmp_path_factory: pytest.TempPathFactory, moto_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """All five places, each with its canary, outside of what is searched afterwards."""
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("google.auth")
    folder = tmp_path_factory.mktemp("vaults")
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "CLOUDSDK_"))]:
        monkeypatch.delenv(name)
    (folder / "token").write_text(CANARIES["file"] + "\n")
    monkeypatch.setenv("OUTER_TOKEN", CANARIES["env"])
    tokens: set[str] = set()
    with (
        GoogleAuthServer(tokens) as auth,
        SecretManagerServer(tokens) as google,
        KubeSecretsServer() as kube,
    ):
        google.secrets["project", "wandb"] = [CANARIES["google"].encode()]
        kube.secrets["default", "wandb"] = {"key": CANARIES["kube"].encode()}
        (folder / "kubeconfig").write_text(kube.kubeconfig())
        given = {
            "GOOGLE_APPLICATION_CREDENTIALS": str(auth.service_account_file(folder / "key.json")),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": f"{google.url}/",
            "KUBECONFIG": str(folder / "kubeconfig"),
            "AWS_ENDPOINT_URL": moto_url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("secretsmanager", region_name="us-east-1")
        client.create_secret(Name="wandb", SecretString=CANARIES["amazon"])
        yield folder
        client.delete_secret(SecretId="wandb", ForceDeleteWithoutRecovery=True)


def test_secrets_of_every_kind_reach_the_script_and_are_written_nowhere(
    headway: Headway, vaults: Path, tmp_path: Path
) -> None:
    Path("train.py").write_text(SCRIPT)
    Path("headway.yaml").write_text(JOB.format(folder=vaults))
    doctor = headway("doctor")
    assert all(f"secret TOKEN_{kind} resolves" in doctor.out for kind in ("ENV", "FILE", "GOOGLE", "KUBE", "AMAZON"))
    said = [doctor, headway("plan", "--json"), headway("run", "--name", "c"), headway("why", "c"), headway("logs", "c")]
    printed = said[-1].out
    for kind, canary in CANARIES.items():
        name = {"google": "GOOGLE", "amazon": "AMAZON"}.get(kind, kind.upper())
        assert f"{name} {len(canary)} ***" in printed
    for canary in CANARIES.values():
        for each in said:
            assert canary not in each.out + each.err
        for path in tmp_path.rglob("*"):
            assert not path.is_file() or canary.encode() not in path.read_bytes(), path


def test_doctor_says_which_secret_does_not_resolve_and_what_to_type(
    headway: Headway, vaults: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("train.py").write_text("pass\n")
    Path("headway.yaml").write_text(JOB.format(folder=vaults).replace("k8s://wandb/key", "k8s://wandb/nothing"))
    monkeypatch.delenv("OUTER_TOKEN")
    said = headway("doctor")
    assert said.code == 2
    assert "export OUTER_TOKEN=" in said.out
    assert "one of: key" in said.out
    assert "secret TOKEN_GOOGLE resolves" in said.out
