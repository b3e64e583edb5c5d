"""Google's token servers for tests: OAuth, workload identity federation, impersonation and the metadata server.

Strict: a signature is verified, a subject token must be the expected one, the metadata server wants its header.
Whatever is issued goes into `tokens`, which the strict GCS server accepts.
"""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from tests.servers.loopback import Answer, LoopbackServer, Request

EMAIL = "trainer@project.iam.gserviceaccount.com"
SUBJECT_TOKEN = "what-the-cluster-gave-us"
_JWT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_AUDIENCE = "https://oauth2.googleapis.com/token"  # signed for by Google's library, wherever it is sent
_SCOPES = tuple(f"https://www.googleapis.com/auth/{name}" for name in ("devstorage.read_write", "cloud-platform"))
_METADATA = "/computeMetadata/v1/"


class GoogleAuthServer(LoopbackServer):
    def __init__(self, tokens: set[str], lifetime_s: int = 3600) -> None:
        super().__init__(self._serve)
        self.tokens = tokens
        self.lifetime_s = lifetime_s
        self.issued: list[str] = []
        self._private, self._public = _key_pair()

    def __enter__(self) -> GoogleAuthServer:
        super().__enter__()
        return self

    # ── files of credentials, as Google writes them ──────────────────────────

    def service_account_file(self, path: Path) -> Path:
        described = {
            "type": "service_account",
            "project_id": "project",
            "private_key_id": "1",
            "private_key": self._private,
            "client_email": EMAIL,
            "client_id": "1",
            "token_uri": f"{self.url}/token",
        }
        path.write_text(json.dumps(described))
        return path

    def federation_file(self, path: Path, *, impersonate: bool) -> Path:
        """Workload identity federation: a token of somebody else's is exchanged for one of Google's."""
        subject = path.with_suffix(".subject")
        subject.write_text(SUBJECT_TOKEN)
        described = {
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/pool/providers/p",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"{self.url}/sts",
            "credential_source": {"file": str(subject)},
        }
        if impersonate:
            where = f"{self.url}/v1/projects/-/serviceAccounts/{EMAIL}:generateAccessToken"
            described["service_account_impersonation_url"] = where
        path.write_text(json.dumps(described))
        return path

    # ── the wire ─────────────────────────────────────────────────────────────

    def _serve(self, request: Request) -> Answer:
        if request.path == "/" or request.path.startswith(_METADATA):
            return self._metadata(request)
        if request.path == "/token" and request.method == "POST":
            return self._oauth(request)
        if request.path == "/sts" and request.method == "POST":
            return self._exchange(request)
        if request.path.endswith(":generateAccessToken") and request.method == "POST":
            return self._impersonate(request)
        return Answer(status=501, body=f"this server does not know {request.method} {request.path}".encode())

    def _oauth(self, request: Request) -> Answer:
        form = _form(request)
        jwt: Any = import_module("google.auth.jwt")
        if form.get("grant_type") != _JWT:
            return Answer(status=501, body=b"this server grants by JWT only")
        claims = jwt.decode(form["assertion"], certs=self._public, audience=_AUDIENCE)
        if claims["iss"] != EMAIL or claims.get("scope") not in _SCOPES:
            return _json({"error": "invalid_grant", "error_description": "unknown account or no scope"}, 400)
        return _json({"access_token": self._issue(), "expires_in": self.lifetime_s, "token_type": "Bearer"})

    def _exchange(self, request: Request) -> Answer:
        form = _form(request)
        if form.get("grant_type") != _EXCHANGE or form.get("subject_token") != SUBJECT_TOKEN:
            return _json({"error": "invalid_request", "error_description": "the subject token is not valid"}, 400)
        token = {"access_token": self._issue(), "expires_in": self.lifetime_s, "token_type": "Bearer"}
        return _json({**token, "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"})

    def _impersonate(self, request: Request) -> Answer:
        federated = request.headers.get("authorization", "").removeprefix("Bearer ")
        if federated not in self.tokens:
            return _json({"error": {"code": 401, "message": "unauthenticated"}}, 401)
        self.tokens.discard(federated)  # from now on only the service account's token opens the bucket
        expires = datetime.now(timezone.utc) + timedelta(seconds=self.lifetime_s)
        return _json({"accessToken": self._issue(), "expireTime": expires.strftime("%Y-%m-%dT%H:%M:%SZ")})

    def _metadata(self, request: Request) -> Answer:
        flavor = {"Metadata-Flavor": "Google"}
        if request.headers.get("metadata-flavor") != "Google":
            return Answer(status=403, headers=flavor, body=b"Missing Metadata-Flavor:Google header.")
        account = f"{_METADATA}instance/service-accounts/default/"
        if request.path in ("/", _METADATA):
            return Answer(headers=flavor)
        if request.path == f"{_METADATA}project/project-id":
            return Answer(headers={**flavor, "Content-Type": "application/text"}, body=b"project")
        if request.path == account:
            return _json({"email": EMAIL, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}, 200, flavor)
        if request.path == f"{account}token":
            token = {"access_token": self._issue(), "expires_in": self.lifetime_s, "token_type": "Bearer"}
            return _json(token, 200, flavor)
        return Answer(status=404, headers=flavor)

    def _issue(self) -> str:
        token = f"issued-{len(self.issued)}-{time.monotonic_ns()}"
        self.issued.append(token)
        self.tokens.add(token)
        return token


def _form(request: Request) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(request.body.decode()).items()}


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    kind = {"Content-Type": "application/json"}
    return Answer(status=status, headers={**kind, **(headers or {})}, body=json.dumps(content).encode())


def _key_pair() -> tuple[str, str]:
    rsa: Any = import_module("cryptography.hazmat.primitives.asymmetric.rsa")
    form: Any = import_module("cryptography.hazmat.primitives.serialization")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public.decode()
