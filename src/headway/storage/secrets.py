"""Secrets: passed as references everywhere, resolved only in the process that needs them. Costs nothing to import.

env:NAME · file:PATH · gcp-sm://[PROJECT/]NAME[/VERSION] · aws-sm://NAME[#KEY] · k8s://SECRET/KEY
"""

from __future__ import annotations

import base64
import json
import os
import re
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
    """Fetch the value now. Raises BadInput if there is none, Denied without permission to read it."""
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
    from headway.storage import google

    client = google.GoogleClient(needed_for="a secret of gcp-sm://")
    secret = ""
    try:
        project, name, version = _google_name(reference, client.default_project())
        secret = f"{name} --project={project}"
        url = google.SECRET_MANAGER.url(f"v1/projects/{project}/secrets/{name}/versions/{version}:access")
        response = client.request(google.SECRET_MANAGER, "GET", url)
    except google.NotFound as error:
        fix = f"gcloud secrets create {secret} --data-file=-"
        raise BadInput(f"there is no secret {reference}, or it has no such version", fix=fix) from error
    except google.Unauthenticated as error:
        raise Denied(error.problem.what, fix=error.problem.fix) from error
    except google.GoogleError as error:
        if error.code != 403:
            raise Transient(f"{error.problem.what} ({reference})") from error
        member = f"serviceAccount:{client.account}" if client.account else 'user:"$(gcloud config get account)"'
        role = google.SECRET_MANAGER.role
        fix = f"gcloud secrets add-iam-policy-binding {secret} --member={member} --role=roles/{role}"
        raise Denied(f"no permission to read the secret {reference}", fix=fix) from error
    return base64.b64decode(response["payload"]["data"]).decode()


def _google_name(reference: Reference, default_project: str | None) -> tuple[str, str, str]:
    """Parse NAME, PROJECT/NAME or PROJECT/NAME/VERSION into project, name and version."""
    parts = reference.name.split("/")
    if len(parts) > 3 or not all(re.fullmatch(r"[A-Za-z0-9_:.-]+", part) for part in parts):
        raise BadInput(
            f"{reference} does not name a secret", fix="write gcp-sm://NAME or gcp-sm://PROJECT/NAME/VERSION"
        )
    if len(parts) > 1:
        return parts[0], parts[1], parts[2] if len(parts) == 3 else "latest"
    project = os.environ.get("GOOGLE_CLOUD_PROJECT") or default_project
    if not project:
        raise BadInput(f"{reference} does not say which project it is in", fix=f"write gcp-sm://PROJECT/{parts[0]}")
    return project, parts[0], "latest"


# AWS Secrets Manager


def _from_amazon(reference: Reference) -> str:
    try:
        import_module("boto3")
    except ImportError:
        raise MissingExtra("aws", needed_for="a secret of aws-sm://") from None
    from headway.storage.credentials import amazon_errors, amazon_region, amazon_session

    failures: Any = import_module("botocore.exceptions")
    name, _, key = reference.name.partition("#")
    session = amazon_session()
    region = amazon_region(session)
    if not region:
        raise BadInput(f"{reference} does not say which region it is in", fix="export AWS_REGION=us-east-1")
    try:
        with amazon_errors(passing=(failures.ClientError,)):
            response = session.client("secretsmanager", region_name=region).get_secret_value(SecretId=name)
    except failures.ClientError as error:
        raise _amazon_error(error, reference) from error
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
    return Denied(f"no permission to read the secret {reference}: {code}", fix=fix)


def _json_field(value: str, key: str, reference: Reference) -> str:
    """Return one field of a secret that holds JSON, as AWS's console creates them."""
    try:
        fields = json.loads(value)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or key not in fields:
        raise BadInput(f"the secret {reference} has no such field", fix=f"write {reference.kind}://NAME#FIELD")
    return str(fields[key])


# Kubernetes


def _from_kubernetes(reference: Reference) -> str:
    """Read it with the kubeconfig's current context or the pod's account. In a run's pods, Kubernetes injects it."""
    cluster: Any = import_module("headway.targets.kubernetes.client")
    name, _, key = reference.name.partition("/")
    api = cluster.Client()
    namespace = _namespace() or api.namespace
    try:
        response = api("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")
    except cluster.NotFound:
        fix = f"kubectl -n {namespace} create secret generic {name} --from-literal={key}=…"
        raise BadInput(f"there is no secret {reference} in namespace {namespace}", fix=fix) from None
    except cluster.Forbidden:
        fix = f"kubectl -n {namespace} create role {name} --verb=get --resource=secrets --resource-name={name}"
        raise Denied(f"no permission to read the secret {reference} in namespace {namespace}", fix=fix) from None
    except cluster.Unreachable as error:
        raise Transient(
            f"the cluster of {reference} cannot be reached: {error.problem.what}", fix=error.problem.fix
        ) from error
    data = response.get("data") or {}
    if key not in data:
        known = ", ".join(sorted(data)) or "(it has no keys)"
        raise BadInput(f"the secret {name} has no key {key}", fix=f"write k8s://{name}/KEY with one of: {known}")
    try:
        return base64.b64decode(data[key], validate=True).decode()
    except ValueError:
        raise BadInput(f"the secret {reference} is not text") from None


def _namespace() -> str:
    """Return $HEADWAY_NAMESPACE, in a pod of a run; else nothing: the kubeconfig's context or this pod decides."""
    return os.environ.get("HEADWAY_NAMESPACE", "")
