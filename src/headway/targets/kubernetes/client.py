"""Client of the Kubernetes API over plain HTTPS, the only access to a cluster, and helpers per kind of object.

Refused requests raise ApiError, with a command that helps. Standard library only, so that the same few calls serve
the client, `doctor`, and the reaper inside a pod.
"""

from __future__ import annotations

import json
import ssl
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

from headway.core import http
from headway.core.errors import StoreError, TargetError
from headway.core.retry import RetryPolicy
from headway.core.types import RUN_LABEL
from headway.targets.kubernetes import kubeconfig
from headway.targets.kubernetes.kubeconfig import Access, Credential

Object = dict[str, Any]
REQUEST_TIMEOUT_S = 30.0
RETRY = RetryPolicy(tries=4, total_s=150.0, first_pause_s=1.0)  # of idempotent requests; others are sent once
MERGE_PATCH = "application/merge-patch+json"
_RETRYABLE = frozenset({429, 500, 502, 503, 504})


class ApiError(TargetError):
    """A request that the cluster refused. `code` is the HTTP status, `message` the cluster's message."""

    def __init__(self, what: str, *, code: int = 0, message: str = "", where: str = "", fix: str = "") -> None:
        super().__init__(what, where=where, fix=fix)
        self.code, self.message = code, message


class NotFound(ApiError):
    """No such object, or no such kind of object."""


class AlreadyExists(ApiError):
    """An object of that name exists already."""


class Forbidden(ApiError):
    """The credentials lack the permission."""


class Unreachable(ApiError):
    """No cluster answers. `code` is 0, or -1 if its certificate does not verify."""


class Api(Protocol):
    """Sends one request and returns its JSON response. Raises ApiError."""

    def __call__(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Object | None = None
    ) -> Object: ...

    def lines(self, path: str, *, query: Mapping[str, str] | None = None) -> Iterator[str]:
        """Stream a text response line by line."""


@dataclass
class Client:
    """HTTPS implementation of `Api`. Connects on the first request; not thread-safe."""

    context: str | None = None
    place: Mapping[str, str] = field(default_factory=dict)  # a run's recorded cluster: no other one is asked
    fix: str = ""  # the command to suggest if no cluster is configured
    access: Access | None = None
    _http: http.Client | None = field(default=None, repr=False)
    _credential: Credential | None = field(default=None, repr=False)
    date = ""  # the Date header of the last response: the server's clock

    def __call__(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Object | None = None
    ) -> Object:
        response = self._request(method, path, query, body)
        if response.status == 401 and self._credential is not None:  # the token expired early: retry with a new one
            self._credential = None
            self.close()
            response = self._request(method, path, query, body)
        self.date = response.headers.get("Date") or ""
        if response.status >= 300:
            raise api_error(response.status, response.body, f"{method} {path}", self._where(), login=self.fix)
        answer: Object = response.json()
        return answer

    def lines(self, path: str, *, query: Mapping[str, str] | None = None) -> Iterator[str]:
        try:
            with self._client().stream(self._url(path), query=query, headers=self._headers("GET")) as response:
                if response.status >= 300:
                    raise api_error(
                        response.status, response.read(http.MAX_BYTES), f"GET {path}", self._where(), login=self.fix
                    )
                yield from response.lines()
        except (http.ConnectionFailed, http.CertificateRejected) as error:
            raise self._unreachable(error) from None

    def _request(self, method: str, path: str, query: Mapping[str, str] | None, body: Object | None) -> http.Response:
        try:
            return self._client().request(
                method, self._url(path), query=query, json=body, headers=self._headers(method)
            )
        except (http.ConnectionFailed, http.CertificateRejected) as error:
            self.close()
            raise self._unreachable(error) from None

    def _headers(self, method: str) -> dict[str, str | tuple[str, ...]]:
        headers: dict[str, str | tuple[str, ...]] = {"Accept": "application/json", **self._access().impersonate}
        token = self._token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return headers | ({"Content-Type": MERGE_PATCH} if method == "PATCH" else {})

    def _url(self, path: str) -> str:
        return self._access().server.rstrip("/") + quote(path)

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def _access(self) -> Access:
        if self.access is None:
            self.access = kubeconfig.load_recorded(self.place, self.context, fix=self.fix)
        return self.access

    def recorded_place(self) -> dict[str, str]:
        """Return what a run's record keeps of this cluster."""
        return kubeconfig.place_of(self._access())

    @property
    def context_name(self) -> str:
        """The kubeconfig's context that leads to the cluster."""
        return self._access().context

    @property
    def namespace(self) -> str:
        """The namespace of the kubeconfig's context or of this pod; `default` if none is named."""
        return self._access().namespace or "default"

    def _where(self) -> str:
        return self._access().context

    def _token(self) -> str | None:
        access = self._access()
        if access.token_file is not None:
            try:
                return access.token_file.read_text().strip()  # the cluster renews it in place
            except OSError as error:
                raise TargetError(f"the token cannot be read: {error}", where=str(access.token_file)) from None
        if access.plugin is not None:
            return self._from_plugin(access).token
        return access.token

    def _from_plugin(self, access: Access) -> Credential:
        credential = self._credential
        if credential is None or (credential.expires is not None and credential.expires < time.time() + 60):
            assert access.plugin is not None
            credential = self._credential = kubeconfig.run_exec_plugin(access.plugin, access.server)
        return credential

    def _client(self) -> http.Client:
        if self._http is None:
            access = self._access()
            self._http = http.Client(
                timeout_s=REQUEST_TIMEOUT_S,
                retry=RETRY,
                retry_statuses=_RETRYABLE,
                tls=self._tls(access) if access.server.startswith("https:") else None,
                server_name=access.server_name,
                proxy=access.proxy or None,
            )
        return self._http

    def _tls(self, access: Access) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=access.ca.decode() if access.ca else None)
        if access.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        certificate, key = access.certificate, access.key
        if access.plugin is not None and certificate is None:
            given = self._from_plugin(access)
            certificate, key = given.certificate, given.key
        if certificate and key:
            _load(context, certificate, key)
        return context

    def _unreachable(self, error: StoreError) -> ApiError:
        access = self._access()
        if isinstance(error, http.CertificateRejected):
            what = f"{access.server} has a certificate that the kubeconfig's CA did not sign: {error.problem.what}"
            return Unreachable(what, code=-1, where=access.context, fix=self.fix)
        reason = error.reason if isinstance(error, http.ConnectionFailed) else error.problem.what
        return Unreachable(
            f"cannot connect to the cluster at {access.server}: {reason}",
            where=access.context,
            fix="kubectl cluster-info",
        )


def api_error(code: int, content: bytes, request: str, where: str, *, login: str = "") -> ApiError:
    """Turn an HTTP error response into the ApiError for it. `login` is the command that renews the credentials."""
    try:
        status = json.loads(content)
        message = str(status.get("message") or status.get("reason") or "")
    except (ValueError, AttributeError):
        message = content.decode("utf-8", "replace").strip().splitlines()[0][:300] if content.strip() else ""
        status = {}
    reason = str(status.get("reason", "")) if isinstance(status, dict) else ""
    if code == 404:
        return NotFound(message or f"{request}: not there", code=code, message=message, where=where)
    if code == 409 and reason in ("AlreadyExists", ""):
        return AlreadyExists(message, code=code, message=message, where=where)
    if code == 401:
        fix = f"{login}; or fix the user of this context in the kubeconfig" if login else "kubectl config view --minify"
        return ApiError(
            "the cluster rejected the credentials (401 Unauthorized)", code=code, message=message, where=where, fix=fix
        )
    if code == 403:
        return Forbidden(message, code=code, message=message, where=where, fix=_permission_fix(message))
    return ApiError(f"the cluster refuses {request}: {message or code}", code=code, message=message, where=where)


def _permission_fix(message: str) -> str:
    if "exceeded quota" in message:
        return "kubectl describe resourcequota, then smaller `resources`, or ask for more"
    return "headway doctor --on TARGET says which permissions are missing, and the command that gives them"


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a client certificate through a short-lived private file, because `ssl` accepts only files."""
    with tempfile.NamedTemporaryFile() as file:  # made with mode 0600
        file.write(certificate.rstrip() + b"\n" + key)
        file.flush()
        context.load_cert_chain(file.name)


# REST paths and operations, by kind of object


PAGE = 500
# In teardown order: workloads first, the objects that others depend on last.
REST_PATHS: dict[str, tuple[str, str]] = {
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "PyTorchJob": ("/apis/kubeflow.org/v1", "pytorchjobs"),
    "TrainJob": ("/apis/trainer.kubeflow.org/v1alpha1", "trainjobs"),
    "Job": ("/apis/batch/v1", "jobs"),
    "Service": ("/api/v1", "services"),
    "Secret": ("/api/v1", "secrets"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "Pod": ("/api/v1", "pods"),
}
_CUSTOM_KINDS = ("PyTorchJob", "TrainJob")  # a cluster may lack them, or have lost them with all of their objects
KINDS_BY_ENGINE = {
    "statefulset": ("StatefulSet", "Job", "Service", "Secret", "RoleBinding", "Role", "ServiceAccount", "Pod"),
    "pytorchjob": ("PyTorchJob", "Job", "Secret", "Pod"),
    "trainjob": ("TrainJob", "Job", "Secret", "ServiceAccount", "Pod"),
}


def path(kind: str, namespace: str, name: str = "") -> str:
    group, plural = REST_PATHS[kind]
    return f"{group}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def create(api: Api, body: Object, *, dry_run: bool = False) -> Object:
    """Create an object. With `dry_run` the cluster only validates it, its webhooks included."""
    query = {"dryRun": "All"} if dry_run else None
    return api("POST", path(body["kind"], body["metadata"]["namespace"]), query=query, body=body)


def patch(api: Api, body: Object) -> Object:
    """Send a merge patch to the object that the patch names."""
    metadata = body["metadata"]
    return api("PATCH", path(body["kind"], metadata["namespace"], metadata["name"]), body=body)


def scale(api: Api, kind: str, namespace: str, name: str, replicas: int) -> None:
    """Set the number of replicas through the `scale` subresource, whose permission does not extend to the pods."""
    api("PATCH", f"{path(kind, namespace, name)}/scale", body={"spec": {"replicas": replicas}})


def read(api: Api, kind: str, namespace: str, name: str) -> Object | None:
    try:
        return api("GET", path(kind, namespace, name))
    except NotFound:
        return None


def delete(
    api: Api,
    kind: str,
    namespace: str,
    name: str,
    *,
    policy: str = "Background",
    grace_s: int | None = None,
    uid: str = "",
) -> None:
    """Delete an object. Succeeds if it does not exist, or if it is another one than that of the `uid`."""
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    if uid:
        options["preconditions"] = {"uid": uid}
    try:
        api("DELETE", path(kind, namespace, name), body=options)
    except NotFound:
        pass
    except ApiError as error:
        if not uid or error.code != 409:
            raise


def list_objects(api: Api, kind: str, namespace: str, selector: str = RUN_LABEL) -> list[Object]:
    """List all objects of a kind with these labels; none if the cluster lacks the custom kind.

    Raises ApiError if it claims not to know a kind that every cluster has: then it is no cluster that answers.
    """
    items: list[Object] = []
    query = {"labelSelector": selector, "limit": str(PAGE)}
    while True:
        try:
            answer = api("GET", path(kind, namespace), query=query)
        except NotFound as error:
            if kind not in _CUSTOM_KINDS:
                what = f"what answers does not know {path(kind, namespace)}: it is not the API of a Kubernetes cluster"
                raise ApiError(what, code=404, where=error.problem.where, fix="kubectl cluster-info") from None
            return items
        items += [{**item, "kind": kind} for item in answer.get("items") or ()]
        token = answer.get("metadata", {}).get("continue")
        if not token:
            return items
        query["continue"] = str(token)


def list_all(api: Api, namespace: str, selector: str, *, needed: Iterable[str]) -> list[Object]:
    """List objects of every kind that Headway creates, skipping forbidden kinds unless they are `needed`."""
    items: list[Object] = []
    for kind in REST_PATHS:
        try:
            items += list_objects(api, kind, namespace, selector)
        except Forbidden:
            if kind in needed:
                raise
    return items


def label(item: Object, name: str) -> str:
    return str((item["metadata"].get("labels") or {}).get(name, ""))


def annotation(item: Object, name: str) -> str:
    return str((item["metadata"].get("annotations") or {}).get(name, ""))


def display_name(item: Object) -> str:
    """Return the object's name as typed after `kubectl get`, which is also how a receipt names it."""
    return f"{item['kind'].lower()}/{item['metadata']['name']}"
