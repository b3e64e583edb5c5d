"""Credentials are found by their shapes, in any file; hashes, data and source code are not taken for credentials.

The samples are put together here: a repository with whole tokens in it would be refused by its own gate.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import sqlite3
import string
import time
from pathlib import Path

import pytest

from headway.storage.secret_scan import find_secrets, looks_secret_by_name

_RANDOM = random.Random(7)


def chars(count: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    return "a1B2" + "".join(_RANDOM.choices(alphabet, k=count - 4))


def upper(count: int) -> str:
    return "A2B3" + "".join(_RANDOM.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", k=count - 4))


def hexadecimal(count: int) -> str:
    return hashlib.sha512(str(count).encode()).hexdigest()[:count]


KEY = "-----BEGIN {}PRIVATE " + "KEY-----\n" + chars(64) + "\n" + chars(64) + "\n-----END {}PRIVATE KEY-----\n"
PEM = KEY.format("RSA ", "RSA ")
SERVICE_ACCOUNT = json.dumps({"type": "service_account", "private_key_id": hexadecimal(40), "private_key": PEM})
JWT = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in (
    {"alg": "HS256", "typ": "JWT"}, {"sub": "me", "iat": 1516239022}, hexadecimal(40)))  # fmt: skip
SAMPLES = {
    "a private key": [PEM, KEY.format("", ""), KEY.format("OPENSSH ", "OPENSSH "), json.dumps(PEM), repr(PEM),
                      "key: " + base64.b64encode(PEM.encode()).decode()],
    "a Google service account's key": [SERVICE_ACCOUNT, json.dumps(json.loads(SERVICE_ACCOUNT), indent=2)],
    "a Google API key": ["AI" + "za" + chars(35)],
    "a Google access token": ["ya" + "29." + chars(120)],
    "a Google refresh token": [json.dumps({"refresh_token": "1/" + "/0" + chars(60)})],
    "a Google client secret": ["GOC" + "SPX-" + chars(28)],
    "an AWS access key": ["[default]\naws_access_key_id = AK" + "IA" + upper(16)],
    "an AWS secret key": [f"aws_secret_access_key = {chars(40)}", f"AWS_SECRET_ACCESS_KEY='{chars(40)}'",
                          f'{{"awsSecretAccessKey": "{chars(40)}"}}',
                          f'os.environ["AWS_SECRET_ACCESS_KEY"] = "{chars(40)}"'],
    "an AWS session token": [f"aws_session_token = {chars(200)}"],
    "an Azure storage key": [f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={chars(86)}=="],
    "an Azure shared access signature": [f"https://a.blob.core.windows.net/c?sv=2024-01-01&sp=r&sig={chars(43)}%3D"],
    "a GitHub token": ["gh" + "p_" + chars(36), "github" + "_pat_" + chars(22) + "_" + chars(59)],
    "a GitLab token": ["gl" + "pat-" + chars(20)],
    "a Hugging Face token": ["h" + "f_" + chars(34), f'login(token="h{"f_" + chars(34)}")'],
    "a W&B API key": [f"WANDB_API_KEY={hexadecimal(40)}", f"wandb:\n  project: x\n  api_key: {hexadecimal(40)}\n",
                      f'wandb.login(key="{hexadecimal(40)}")', "wandb" + "_v1_" + chars(80)],
    "a Slack token": ["xo" + "xb-718203948571-4029384756102-" + chars(24)],
    "a Slack webhook": ["https://hooks.slack" + f".com/services/T{upper(9)}/B{upper(9)}/{chars(24)}"],
    "an Anthropic API key": ["sk-" + "ant-api03-" + chars(95)],
    "an OpenAI API key": ["sk-" + "proj-" + chars(120), "sk-" + chars(48)],
    "a JSON Web Token": [JWT, f"Authorization: Bearer {JWT}"],
    "an npm token": ["np" + "m_" + chars(36), "//registry.npmjs.org/:_auth" + "Token=" + chars(36)],
    "a PyPI token": ["py" + "pi-AgEIcHlwaS5vcmc" + chars(80)],
    "a password of .netrc": [f"machine api.wandb.ai\n  login user\n  password {hexadecimal(40)}\n"],
    "a password in a URL": [f"https://me:{chars(20)}@github.com\n",
                            f"--extra-index-url https://u:{chars(30)}@pypi.corp/simple"],
    "registry passwords of Docker": [
        json.dumps({"auths": {"https://index.docker.io/v1/": {"auth": chars(24)}}}, indent=4)],
    "a kubeconfig's token": [f"apiVersion: v1\nkind: Config\nusers:\n- name: me\n  user:\n    token: {chars(40)}\n",
                             f"users:\n- name: me\n  user:\n    token: {chars(40)}\nkind: Config\n"],
    "a Terraform state": [json.dumps({"version": 4, "terraform_version": "1.9.0", "serial": 3,
                                      "lineage": "3f2b8a9c-1111-4d2e-9c3f-7e5a1b2c3d4e", "outputs": {}}, indent=2)],
    "an API key of Kaggle": [json.dumps({"username": "me", "key": hexadecimal(32)})],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in SAMPLES.items() for text in texts])
def test_a_credential_is_found_with_its_line(kind: str, text: str) -> None:
    found = find_secrets(b"# first line\n" + text.encode())
    assert kind in {one.kind for one in found}
    assert min(one.line for one in found) >= 2
    assert all(text.strip() not in str(one) for one in found)


def test_a_file_of_powershell_is_read_as_well() -> None:
    assert find_secrets("TOKEN=gh".encode("utf-16") + ("p_" + chars(36)).encode("utf-16-le"))


def test_gclouds_database_is_found(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "copy.sqlite")
    database.execute("CREATE TABLE credentials (account_id TEXT PRIMARY KEY, value BLOB)")
    database.commit()
    database.close()
    assert find_secrets((tmp_path / "copy.sqlite").read_bytes())[0].kind == "credentials of gcloud"
    database = sqlite3.connect(tmp_path / "mine.sqlite")
    database.execute("CREATE TABLE results (step INTEGER, loss REAL)")
    database.commit()
    database.close()
    assert not find_secrets((tmp_path / "mine.sqlite").read_bytes())


def test_what_people_commit_is_not_taken_for_a_credential() -> None:
    picture = base64.b64encode(_RANDOM.randbytes(200_000)).decode()
    harmless = {
        "requirements.txt": f"torch==2.4 \\\n    --hash=sha256:{hexadecimal(64)}\n",
        "uv.lock": f'sdist = {{ url = "https://files.pythonhosted.org/a.tar.gz", hash = "sha256:{hexadecimal(64)}" }}',
        "package-lock.json": json.dumps({"integrity": "sha512-" + base64.b64encode(b"x1" * 32).decode()}),
        "notebook.ipynb": json.dumps({"cells": [{"outputs": [{"data": {"image/png": picture}}]}]}),
        "url-safe": base64.urlsafe_b64encode(_RANDOM.randbytes(200_000)).decode(),
        "vectors.json": json.dumps([_RANDOM.random() for _ in range(5000)]),
        "ids.csv": "\n".join(hexadecimal(40) for _ in range(1000)),
        "code.py": 'key = os.environ["WANDB_API_KEY"]\nwandb.login(key=key)\n'
                   'hf_hub_download_with_a_long_identifier_name1()\n',
        "docs.md": "export HF_TOKEN=hf_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\naws_secret_access_key = "
                   "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY\nhttps://user:password@host/\nAKIAIOSFODNN7EXAMPLE",
        "header.py": 'START = b"-----BEGIN OPENSSH PRIVATE KEY-----"\nEND = b"-----END OPENSSH PRIVATE KEY-----"',
        "postgres": "postgresql://postgres:postgres@localhost:5432/db  https://$USER:${TOKEN}@host  https://u:{token}@h",
        "public.pem": "-----BEGIN CERTIFICATE-----\n" + chars(64) + "\n",
    }  # fmt: skip
    assert {name: find_secrets(text.encode()) for name, text in harmless.items() if find_secrets(text.encode())} == {}


def test_this_repository_has_no_finding_and_is_read_quickly() -> None:
    root = Path(__file__).parents[2]
    bodies = {path: path.read_bytes() for folder in ("src", "docs", "examples", "requirements", "scripts")
              for path in (root / folder).rglob("*") if path.is_file()}  # fmt: skip
    started = time.process_time()
    found = {str(path): findings for path, body in bodies.items() if (findings := find_secrets(body))}
    assert found == {}
    assert (time.process_time() - started) / len(bodies) < 0.002  # 0.2 ms measured


@pytest.mark.parametrize("name", [
    ".env", ".ENV", ".envrc", "prod.env", ".env.local", "kubeconfig", "Kubeconfig", "terraform.tfstate",
    "terraform.tfstate.backup", "secrets.yaml", "Secrets.YML", ".docker", ".git-credentials", "ID_RSA", "server.KEY",
    "credentials.db", "gcp-access-key.json", "client_secret_12.apps.googleusercontent.com.json", ".huggingface",
])  # fmt: skip
def test_names_of_secrets_are_known_in_any_case(name: str) -> None:
    assert looks_secret_by_name(name)


@pytest.mark.parametrize(
    "name", [".env.example", "kubeconfig.py", "environment.py", "keys.py", "secrets.py", "token.py"]
)
def test_sources_and_templates_are_not_secrets_by_their_name(name: str) -> None:
    assert not looks_secret_by_name(name)
