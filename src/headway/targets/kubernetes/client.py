"""Client of the Kubernetes API over plain HTTPS, the only access to a cluster, and helpers per kind of object.

Refused requests raise ApiError, with a command that helps. Standard library only, so that the same few calls serve
the client, `doctor`, and the reaper inside a pod.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

from headway.core.errors import TargetError
from headway.core.types import RUN_LABEL
from headway.targets.kubernetes import kubeconfig
from headway.targets.kubernetes.kubeconfig import Access, Credential

Object = dict[str, Any]
REQUEST_TIMEOUT_S = 30.0
TRIES = 4  # of idempotent requests; others are sent once
MERGE_PATCH = "application/merge-patch+json"
_RETRYABLE = (429, 500, 502, 503, 504)


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
    fix: str = ""  # the command to suggest if no cluster is configured
    access: Access | None = None
    _connection: http.client.HTTPConnection | None = field(default=None, repr=False)
    _credential: Credential | None = field(default=None, repr=False)

    def __call__(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Object | None = None
    ) -> Object:
        tries = TRIES if method in ("GET", "PATCH", "DELETE") else 1
        for attempt in range(1, tries + 1):
            try:
                return self._request_once(method, path, query, body)
            except ApiError as error:
                passing = error.code in _RETRYABLE or (isinstance(error, Unreachable) and error.code == 0)
                if not passing or attempt == tries:
                    raise
                time.sleep(0.3 * 2**attempt)
        raise AssertionError("the last try returns or raises")

    def lines(self, path: str, *, query: Mapping[str, str] | None = None) -> Iterator[str]:
        connection = self._connect()  # its own, because it stays open during other requests
        try:
            response = self._send(connection, "GET", _with_query(path, query), None)
            if response.status >= 300:
                raise api_error(response.status, response.read(), f"GET {path}", self._where())
            while raw := response.readline():
                yield raw.decode("utf-8", "replace").rstrip("\n")
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()

    def _request_once(self, method: str, path: str, query: Mapping[str, str] | None, body: Object | None) -> Object:
        reused = self._connection is not None
        try:
            status, content = self._exchange(method, _with_query(path, query), body)
        except (http.client.HTTPException, ConnectionError, ssl.SSLEOFError) as error:
            # The server may have closed an idle connection. That shows only now, before it has processed anything.
            self.close()
            if not reused:
                raise self._unreachable(error) from None
            try:
                status, content = self._exchange(method, _with_query(path, query), body)
            except (OSError, http.client.HTTPException) as retry:
                self.close()
                raise self._unreachable(retry) from None
        except OSError as error:
            self.close()
            raise self._unreachable(error) from None
        if status == 401 and self._credential is not None:  # the token expired early: retry with a new one
            self._credential = None
            self.close()
            status, content = self._exchange(method, _with_query(path, query), body)
        if status >= 300:
            raise api_error(status, content, f"{method} {path}", self._where())
        answer: Object = json.loads(content) if content.strip() else {}
        return answer

    def _exchange(self, method: str, path: str, body: Object | None) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self._connect()
        response = self._send(self._connection, method, path, body)
        content = response.read()
        self.date = response.getheader("Date") or ""
        return response.status, content

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Object | None
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json", "User-Agent": "headway"}
        token = self._token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = MERGE_PATCH if method == "PATCH" else "application/json"
        prefix = urlsplit(self._access().server).path.rstrip("/")
        connection.request(method, prefix + path, body=data, headers=headers)
        return connection.getresponse()

    date = ""  # the Date header of the last response: the server's clock

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _access(self) -> Access:
        if self.access is None:
            self.access = kubeconfig.load(self.context, fix=self.fix)
        return self.access

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

    def _connect(self) -> http.client.HTTPConnection:
        access = self._access()
        url = urlsplit(access.server)
        port = url.port or (443 if url.scheme == "https" else 80)
        proxy = urlsplit(access.proxy or _proxy(url.scheme, url.hostname or ""))
        host, at = (proxy.hostname, proxy.port or 3128) if proxy.hostname else (url.hostname, port)
        if url.scheme == "https":
            connection: http.client.HTTPConnection = _ServerNameConnection(
                host or "", at, timeout=REQUEST_TIMEOUT_S, context=self._tls(access), name=access.server_name
            )
        else:
            connection = http.client.HTTPConnection(host or "", at, timeout=REQUEST_TIMEOUT_S)
        if proxy.hostname:
            connection.set_tunnel(url.hostname or "", port, headers=_proxy_login(proxy.username, proxy.password))
        return connection

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

    def _unreachable(self, error: Exception) -> ApiError:
        access = self._access()
        message = str(error) or type(error).__name__
        if isinstance(error, ssl.SSLCertVerificationError):
            what = f"{access.server} has a certificate that the kubeconfig's CA did not sign: {message}"
            return Unreachable(what, code=-1, where=access.context, fix=self.fix)
        return Unreachable(
            f"cannot connect to the cluster at {access.server}: {message}",
            where=access.context,
            fix="kubectl cluster-info",
        )


class _ServerNameConnection(http.client.HTTPSConnection):
    """An HTTPS connection that verifies the certificate against the kubeconfig's `tls-server-name` if it has one."""

    def __init__(self, *args: Any, name: str | None, context: ssl.SSLContext, **more: Any) -> None:
        super().__init__(*args, context=context, **more)
        self._name, self._tls_context = name, context

    def connect(self) -> None:
        if self._name is None:
            super().connect()
            return
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls_context.wrap_socket(self.sock, server_hostname=self._name)


def api_error(code: int, content: bytes, request: str, where: str) -> ApiError:
    """Turn an HTTP error response into the ApiError for it."""
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
        fix = "gcloud auth login; or mend the user of this context in the kubeconfig"
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


def _with_query(path: str, query: Mapping[str, str] | None) -> str:
    return quote(path) + (f"?{urlencode(query)}" if query else "")


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a client certificate through a short-lived private file, because `ssl` accepts only files."""
    with tempfile.NamedTemporaryFile() as file:  # made with mode 0600
        file.write(certificate.rstrip() + b"\n" + key)
        file.flush()
        context.load_cert_chain(file.name)


def _proxy(scheme: str, host: str) -> str:
    from urllib.request import getproxies, proxy_bypass

    return "" if proxy_bypass(host) else getproxies().get(scheme, "")


def _proxy_login(user: str | None, password: str | None) -> dict[str, str]:
    if not user:
        return {}
    word = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {word}"}


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
KINDS_BY_ENGINE = {
    "statefulset": ("StatefulSet", "Job", "Service", "Secret", "RoleBinding", "Role", "ServiceAccount", "Pod"),
    "pytorchjob": ("PyTorchJob", "Job", "Secret", "Pod"),
    "trainjob": ("TrainJob", "Job", "Secret", "ServiceAccount", "Pod"),
}


def path(kind: str, namespace: str, name: str = "") -> str:
    group, plural = REST_PATHS[kind]
    return f"{group}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def create(api: Api, body: Object) -> Object:
    return api("POST", path(body["kind"], body["metadata"]["namespace"]), body=body)


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
    api: Api, kind: str, namespace: str, name: str, *, policy: str = "Background", grace_s: int | None = None
) -> None:
    """Delete an object. Succeeds if it does not exist."""
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    try:
        api("DELETE", path(kind, namespace, name), body=options)
    except NotFound:
        pass


def list_objects(api: Api, kind: str, namespace: str, selector: str = RUN_LABEL) -> list[Object]:
    """List all objects of a kind with these labels; none if the cluster does not know the kind."""
    items: list[Object] = []
    query = {"labelSelector": selector, "limit": str(PAGE)}
    while True:
        try:
            answer = api("GET", path(kind, namespace), query=query)
        except NotFound:
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
