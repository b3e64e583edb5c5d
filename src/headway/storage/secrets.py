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
_LARGEST = 64 << 10  # bytes; the limit of the clouds' own secret stores
_SHORTEST_HIDDEN = 4  # redacting shorter values would hide ordinary words
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
    found = _REFERENCE.fullmatch(text)
    if not found:
        raise BadInput("this is not a reference to a secret", fix=f"write {_FORMS}")
    kind, name = (part for part in found.groups() if part is not None)
    return Reference(kind, name)


def resolve(reference: str) -> str:
    """Fetch the value now. Raises BadInput if there is none, Denied if it may not be read."""
    where = parse(reference)
    resolvers = {
        "env": _from_environment,
        "file": _from_file,
        "gcp-sm": _from_google,
        "aws-sm": _from_amazon,
        "k8s": _from_cluster,
    }
    value = resolvers[where.kind](where)
    if not value:
        raise BadInput(f"the secret {where} is empty")
    return value


def redact(text: str, values: Iterable[str]) -> str:
    """Replace the values in the text by ***, in each form they may take: verbatim, JSON-escaped, or line by line."""
    forms = {form for value in values for form in _forms(value) if len(form) >= _SHORTEST_HIDDEN}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "***")
    return text


def _forms(value: str) -> Iterable[str]:
    yield value
    yield json.dumps(value)[1:-1]
    yield from (line.strip() for line in value.splitlines())


def _from_environment(where: Reference) -> str:
    value = os.environ.get(where.name)
    if value is None:
        raise BadInput(f"the variable {where.name} is not set", fix=f"export {where.name}=…")
    return value


def _from_file(where: Reference) -> str:
    path = Path(where.name).expanduser()
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        value = content.decode()
    except OSError as error:
        raise BadInput(f"the secret's file cannot be read: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError:
        raise BadInput("the secret's file is not text", where=str(path)) from None
    if len(content) > _LARGEST:
        raise BadInput(f"the secret's file is larger than {_LARGEST} bytes", where=str(path))
    return value.rstrip("\r\n")  # editors end files with a line break that is not part of the secret


# Google Secret Manager


def _from_google(where: Reference) -> str:
    try:
        transport: Any = import_module("google.auth.transport.requests")
    except ImportError:
        raise MissingExtra("gcp", needed_for="a secret of gcp-sm://") from None
    from headway.core.retry import RetryPolicy, keep_trying
    from headway.storage.gcs import google_credentials

    credentials, project = google_credentials(_CLOUD_SCOPE)
    project, name, version = _google_name(where, project)
    host = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER", "https://secretmanager.googleapis.com/")
    url = f"{host.rstrip('/')}/v1/projects/{project}/secrets/{name}/versions/{version}:access"
    session = transport.AuthorizedSession(credentials)

    def ask() -> str:
        return _google_answer(session, url, where, f"{name} --project={project}")

    return keep_trying(ask, RetryPolicy(tries=4))


def _google_name(where: Reference, default_project: str | None) -> tuple[str, str, str]:
    """Parse NAME, PROJECT/NAME or PROJECT/NAME/VERSION into project, name and version."""
    parts = where.name.split("/")
    if len(parts) > 3 or not all(re.fullmatch(r"[A-Za-z0-9_:.-]+", part) for part in parts):
        raise BadInput(f"{where} is not a secret's name", fix="write gcp-sm://NAME or gcp-sm://PROJECT/NAME/VERSION")
    if len(parts) > 1:
        return parts[0], parts[1], parts[2] if len(parts) == 3 else "latest"
    project = os.environ.get("GOOGLE_CLOUD_PROJECT") or default_project
    if not project:
        raise BadInput(f"{where} does not say which project it is in", fix=f"write gcp-sm://PROJECT/{parts[0]}")
    return project, parts[0], "latest"


def _google_answer(session: Any, url: str, where: Reference, named: str) -> str:
    failures: Any = import_module("google.auth.exceptions")
    requests: Any = import_module("requests")
    try:
        answer = session.get(url, timeout=20)
    except (failures.TransportError, requests.ConnectionError, requests.Timeout) as error:
        raise Transient(f"Google's Secret Manager cannot be reached: {error}") from error
    except failures.RefreshError as error:
        fix = "gcloud auth application-default login"
        raise Denied(f"Google refuses the credentials: {error}", fix=fix) from error
    if answer.status_code == 404:
        fix = f"gcloud secrets create {named} --data-file=-"
        raise BadInput(f"there is no secret {where}, or it has no such version", fix=fix)
    if answer.status_code in (401, 403):
        who = getattr(session.credentials, "service_account_email", "") or ""
        member = f"serviceAccount:{who}" if "@" in who else 'user:"$(gcloud config get account)"'
        fix = (
            f"gcloud secrets add-iam-policy-binding {named} --member={member} --role=roles/secretmanager.secretAccessor"
        )
        raise Denied(f"may not read the secret {where}", fix=fix)
    if answer.status_code != 200:
        raise Transient(f"Google's Secret Manager answers {answer.status_code} for {where}")
    return base64.b64decode(answer.json()["payload"]["data"]).decode()


# AWS Secrets Manager


def _from_amazon(where: Reference) -> str:
    try:
        boto3: Any = import_module("boto3")
    except ImportError:
        raise MissingExtra("aws", needed_for="a secret of aws-sm://") from None
    failures: Any = import_module("botocore.exceptions")
    name, _, key = where.name.partition("#")
    try:
        client = boto3.Session(region_name=os.environ.get("AWS_REGION")).client("secretsmanager")
        answer = client.get_secret_value(SecretId=name)
    except failures.ClientError as error:
        raise _amazon_refusal(error, where) from error
    except failures.NoRegionError:
        raise BadInput(f"{where} does not say which region it is in", fix="export AWS_REGION=us-east-1") from None
    except (failures.NoCredentialsError, failures.PartialCredentialsError) as error:
        raise Denied("no AWS credentials", fix="aws sso login  (or: aws configure)") from error
    except failures.BotoCoreError as error:
        raise Transient(f"AWS Secrets Manager cannot be reached: {error}") from error
    value = answer.get("SecretString") or bytes(answer.get("SecretBinary") or b"").decode()
    return _picked(value, key, where) if key else value


def _amazon_refusal(error: Any, where: Reference) -> BadInput | Denied | Transient:
    code = error.response.get("Error", {}).get("Code", "")
    name = where.name.partition("#")[0]
    if code == "ResourceNotFoundException":
        fix = f"aws secretsmanager create-secret --name {name} --secret-string file:///dev/stdin"
        return BadInput(f"there is no secret {where}", fix=fix)
    if code in ("ThrottlingException", "InternalServiceError", "InternalServiceErrorException"):
        return Transient(f"AWS Secrets Manager is busy: {code}")
    fix = f"grant secretsmanager:GetSecretValue on {name} to the role that `aws sts get-caller-identity` shows"
    return Denied(f"may not read the secret {where}: {code}", fix=fix)


def _picked(value: str, key: str, where: Reference) -> str:
    """Return one field of a secret that holds JSON, as AWS's console creates them."""
    try:
        fields = json.loads(value)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or key not in fields:
        raise BadInput(f"the secret {where} has no field of that name", fix=f"write {where.kind}://NAME#FIELD")
    return str(fields[key])


# Kubernetes


def _from_cluster(where: Reference) -> str:
    """Read it with the kubeconfig's current context or the pod's account. In a run's pods, Kubernetes injects it."""
    cluster: Any = import_module("headway.targets.kubernetes.client")
    name, _, key = where.name.partition("/")
    namespace = _namespace()
    try:
        answer = cluster.Client()("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")
    except cluster.NotFound:
        fix = f"kubectl -n {namespace} create secret generic {name} --from-literal={key}=…"
        raise BadInput(f"there is no secret {where} in namespace {namespace}", fix=fix) from None
    except cluster.Forbidden:
        fix = f"kubectl -n {namespace} create role {name} --verb=get --resource=secrets --resource-name={name}"
        raise Denied(f"may not read the secret {where} in namespace {namespace}", fix=fix) from None
    except cluster.Unreachable as error:
        raise Transient(f"no cluster answers for {where}: {error.problem.what}", fix=error.problem.fix) from error
    data = answer.get("data") or {}
    if key not in data:
        known = ", ".join(sorted(data)) or "no key at all"
        raise BadInput(f"the secret {name} has no key {key}", fix=f"write k8s://{name}/KEY with one of: {known}")
    try:
        return base64.b64decode(data[key], validate=True).decode()
    except ValueError:
        raise BadInput(f"the secret {where} is not text") from None


def _namespace() -> str:
    """Return $HEADWAY_NAMESPACE, the pod's own namespace, or `default`."""
    chosen = os.environ.get("HEADWAY_NAMESPACE")
    if chosen:
        return chosen
    try:
        return Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace").read_text().strip() or "default"
    except OSError:
        return "default"
