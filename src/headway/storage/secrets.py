"""Secrets: passed as references everywhere, resolved only in the process that needs them. Costs nothing to import.

env:NAME · file:PATH · gcp-sm://[PROJECT/]NAME[/VERSION] · aws-sm://NAME[#KEY] · k8s://SECRET/KEY
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from headway.core.errors import BadInput, Denied, MissingExtra, Transient

_FORMS = "env:NAME, file:PATH, gcp-sm://NAME, aws-sm://NAME or k8s://SECRET/KEY"
_REFERENCE = re.compile(
    r"(?P<env>env):(?P<variable>[A-Za-z_]\w*)|(?P<file>file):(?P<path>[^\0]+)"
    r"|(?P<cloud>gcp-sm|aws-sm)://(?P<name>[^/\s]\S*)|(?P<k8s>k8s)://(?P<key>[^/\s]+/[^/\s]+)",
    re.ASCII,
)
_MAX_BYTES = 64 << 10  # bytes; the limit of the clouds' own secret stores
_MIN_REDACTED_LENGTH = 4  # redacting shorter values would hide ordinary words
_CLOUD_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a secret is stored. Safe to print."""

    kind: str  # env, file, gcp-sm, aws-sm or k8s
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.kind in ("env", "file") else f"{self.kind}://{self.name}"


def parse(text: str) -> Reference:
    """Parse a reference. Raises BadInput without repeating the text, which may be the secret itself by mistake."""
    match = _REFERENCE.fullmatch(text)
    if not match:
        raise BadInput("this is not a reference to a secret", fix=f"write {_FORMS}")
    kind, name = (part for part in match.groups() if part is not None)
    return Reference(kind, name)


def resolve(reference: str) -> str:
    """Fetch the value now. Raises BadInput if there is none, Denied if it may not be read."""
    where = parse(reference)
    resolvers = {
        "env": _from_environment,
        "file": _from_file,
        "gcp-sm": _from_google,
        "aws-sm": _from_amazon,
        "k8s": _from_kubernetes,
    }
    value = resolvers[where.kind](where)
    if not value:
        raise BadInput(f"the secret {where} is empty")
    return value


def redact(text: str, values: Iterable[str]) -> str:
    """Replace the values in the text by ***, in each form they may take: verbatim, JSON-escaped, or line by line."""
    forms = {form for value in values for form in _forms(value) if len(form) >= _MIN_REDACTED_LENGTH}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "***")
    return text


def _forms(value: str) -> Iterable[str]:
    yield value
    yield json.dumps(value)[1:-1]
    yield from (line.strip() for line in value.splitlines())


def _from_environment(reference: Reference) -> str:
    value = os.environ.get(reference.name)
    if value is None:
        raise BadInput(f"the variable {reference.name} is not set", fix=f"export {reference.name}=…")
    return value


def _from_file(reference: Reference) -> str:
    path = Path(reference.name).expanduser()
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        value = content.decode()
    except OSError as error:
        raise BadInput(f"the secret's file cannot be read: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError:
        raise BadInput("the secret's file is not text", where=str(path)) from None
    if len(content) > _MAX_BYTES:
        raise BadInput(f"the secret's file is larger than {_MAX_BYTES} bytes", where=str(path))
    return value.rstrip("\r\n")  # editors end files with a line break that is not part of the secret


# Google Secret Manager


def _from_google(reference: Reference) -> str:
    try:
        transport: Any = import_module("google.auth.transport.requests")
    except ImportError:
        raise MissingExtra("gcp", needed_for="a secret of gcp-sm://") from None
    from headway.core.retry import RetryPolicy, retry_transient
    from headway.storage.gcs import google_credentials

    credentials, project = google_credentials(_CLOUD_SCOPE)
    project, name, version = _google_name(reference, project)
    host = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER", "https://secretmanager.googleapis.com/")
    url = f"{host.rstrip('/')}/v1/projects/{project}/secrets/{name}/versions/{version}:access"
    session = transport.AuthorizedSession(credentials)

    def ask() -> str:
        return _fetch_google_secret(session, url, reference, f"{name} --project={project}")

    return retry_transient(ask, RetryPolicy(tries=4))


def _google_name(reference: Reference, default_project: str | None) -> tuple[str, str, str]:
    """Parse NAME, PROJECT/NAME or PROJECT/NAME/VERSION into project, name and version."""
    parts = reference.name.split("/")
    if len(parts) > 3 or not all(re.fullmatch(r"[A-Za-z0-9_:.-]+", part) for part in parts):
        raise BadInput(
            f"{reference} is not a secret's name", fix="write gcp-sm://NAME or gcp-sm://PROJECT/NAME/VERSION"
        )
    if len(parts) > 1:
        return parts[0], parts[1], parts[2] if len(parts) == 3 else "latest"
    project = os.environ.get("GOOGLE_CLOUD_PROJECT") or default_project
    if not project:
        raise BadInput(f"{reference} does not say which project it is in", fix=f"write gcp-sm://PROJECT/{parts[0]}")
    return project, parts[0], "latest"


def _fetch_google_secret(session: Any, url: str, reference: Reference, secret_name: str) -> str:
    failures: Any = import_module("google.auth.exceptions")
    requests: Any = import_module("requests")
    try:
        response = session.get(url, timeout=20)
    except (failures.TransportError, requests.ConnectionError, requests.Timeout) as error:
        raise Transient(f"Google's Secret Manager cannot be reached: {error}") from error
    except failures.RefreshError as error:
        fix = "gcloud auth application-default login"
        raise Denied(f"Google refuses the credentials: {error}", fix=fix) from error
    if response.status_code == 404:
        fix = f"gcloud secrets create {secret_name} --data-file=-"
        raise BadInput(f"there is no secret {reference}, or it has no such version", fix=fix)
    if response.status_code in (401, 403):
        account = getattr(session.credentials, "service_account_email", "") or ""
        member = f"serviceAccount:{account}" if "@" in account else 'user:"$(gcloud config get account)"'
        fix = (
            f"gcloud secrets add-iam-policy-binding {secret_name} --member={member} "
            "--role=roles/secretmanager.secretAccessor"
        )
        raise Denied(f"may not read the secret {reference}", fix=fix)
    if response.status_code != 200:
        raise Transient(f"Google's Secret Manager answers {response.status_code} for {reference}")
    return base64.b64decode(response.json()["payload"]["data"]).decode()


# AWS Secrets Manager


def _from_amazon(reference: Reference) -> str:
    try:
        boto3: Any = import_module("boto3")
    except ImportError:
        raise MissingExtra("aws", needed_for="a secret of aws-sm://") from None
    failures: Any = import_module("botocore.exceptions")
    name, _, key = reference.name.partition("#")
    try:
        client = boto3.Session(region_name=os.environ.get("AWS_REGION")).client("secretsmanager")
        response = client.get_secret_value(SecretId=name)
    except failures.ClientError as error:
        raise _amazon_error(error, reference) from error
    except failures.NoRegionError:
        raise BadInput(f"{reference} does not say which region it is in", fix="export AWS_REGION=us-east-1") from None
    except (failures.NoCredentialsError, failures.PartialCredentialsError) as error:
        raise Denied("no AWS credentials", fix="aws sso login  (or: aws configure)") from error
    except failures.BotoCoreError as error:
        raise Transient(f"AWS Secrets Manager cannot be reached: {error}") from error
    value = response.get("SecretString") or bytes(response.get("SecretBinary") or b"").decode()
    return _json_field(value, key, reference) if key else value


def _amazon_error(error: Any, reference: Reference) -> BadInput | Denied | Transient:
    code = error.response.get("Error", {}).get("Code", "")
    name = reference.name.partition("#")[0]
    if code == "ResourceNotFoundException":
        fix = f"aws secretsmanager create-secret --name {name} --secret-string file:///dev/stdin"
        return BadInput(f"there is no secret {reference}", fix=fix)
    if code in ("ThrottlingException", "InternalServiceError", "InternalServiceErrorException"):
        return Transient(f"AWS Secrets Manager is busy: {code}")
    fix = f"grant secretsmanager:GetSecretValue on {name} to the role that `aws sts get-caller-identity` shows"
    return Denied(f"may not read the secret {reference}: {code}", fix=fix)


def _json_field(value: str, key: str, reference: Reference) -> str:
    """Return one field of a secret that holds JSON, as AWS's console creates them."""
    try:
        fields = json.loads(value)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or key not in fields:
        raise BadInput(f"the secret {reference} has no field of that name", fix=f"write {reference.kind}://NAME#FIELD")
    return str(fields[key])


# Kubernetes


def _from_kubernetes(reference: Reference) -> str:
    """Read it with the kubeconfig's current context or the pod's account. In a run's pods, Kubernetes injects it."""
    cluster: Any = import_module("headway.targets.kubernetes.client")
    name, _, key = reference.name.partition("/")
    namespace = _namespace()
    try:
        response = cluster.Client()("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")
    except cluster.NotFound:
        fix = f"kubectl -n {namespace} create secret generic {name} --from-literal={key}=…"
        raise BadInput(f"there is no secret {reference} in namespace {namespace}", fix=fix) from None
    except cluster.Forbidden:
        fix = f"kubectl -n {namespace} create role {name} --verb=get --resource=secrets --resource-name={name}"
        raise Denied(f"may not read the secret {reference} in namespace {namespace}", fix=fix) from None
    except cluster.Unreachable as error:
        raise Transient(f"no cluster answers for {reference}: {error.problem.what}", fix=error.problem.fix) from error
    data = response.get("data") or {}
    if key not in data:
        known = ", ".join(sorted(data)) or "no key at all"
        raise BadInput(f"the secret {name} has no key {key}", fix=f"write k8s://{name}/KEY with one of: {known}")
    try:
        return base64.b64decode(data[key], validate=True).decode()
    except ValueError:
        raise BadInput(f"the secret {reference} is not text") from None


def _namespace() -> str:
    """Return $HEADWAY_NAMESPACE, the pod's own namespace, or `default`."""
    chosen = os.environ.get("HEADWAY_NAMESPACE")
    if chosen:
        return chosen
    try:
        return Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace").read_text().strip() or "default"
    except OSError:
        return "default"
