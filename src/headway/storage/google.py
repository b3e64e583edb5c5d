"""Client of Google Cloud's REST APIs: Vertex AI, Cloud Run, Secret Manager, Cloud Logging, regions of buckets.

It finds credentials and endpoints, retries, reads listings page by page, waits for long-running operations, and raises
refusals as GoogleError, with a command that helps. google-auth is imported on the first request and fetches the tokens.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headway.core.errors import Denied, MissingExtra, TargetError, Transient, json_of
from headway.core.retry import ONCE, RetryPolicy, poll, retry
from headway.storage.credentials import GOOGLE_LOGIN, google_credentials

if TYPE_CHECKING:
    from headway.core import http

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
REQUEST_TIMEOUT_S = 60.0
RETRY = RetryPolicy(tries=4, total_s=30.0)
_BUSY = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """One of Google's APIs.

    Attributes:
        title: Its name in messages.
        name: Its host is NAME.googleapis.com, or REGION-NAME.googleapis.com.
        role: The IAM role, without `roles/`, that grants access.
        busy: Status codes after which an idempotent request is retried.
        override: Variable with another endpoint; by default the one that gcloud reads.
    """

    title: str
    name: str
    role: str
    busy: frozenset[int] = _BUSY
    override: str = ""

    def url(self, path: str, *, region: str = "") -> str:
        """Return the URL of a path, at the region's endpoint if one is given."""
        host = os.environ.get(self.override or f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{self.name.upper()}")
        if host and "://" not in host:
            host = f"http://{host}"  # an emulator's address, as Google's own libraries accept it
        host = host or f"https://{region + '-' if region else ''}{self.name}.googleapis.com"
        return f"{host.rstrip('/')}/{path}"


# 429 means no quota here: another region may have some, so it is not retried.
VERTEX = Service(title="Vertex AI", name="aiplatform", role="aiplatform.user", busy=_BUSY - {429})
CLOUD_RUN = Service(title="Cloud Run", name="run", role="run.admin", busy=_BUSY - {429})
LOGGING = Service(title="Cloud Logging", name="logging", role="logging.viewer")
ARTIFACT_REGISTRY = Service(title="Artifact Registry", name="artifactregistry", role="artifactregistry.reader")
SECRET_MANAGER = Service(title="Secret Manager", name="secretmanager", role="secretmanager.secretAccessor")
STORAGE = Service(
    title="Cloud Storage", name="storage", role="storage.legacyBucketReader", override="STORAGE_EMULATOR_HOST"
)


class GoogleError(TargetError):
    """A request that Google refused. `code` is the HTTP status, `status` the canonical code, as PERMISSION_DENIED."""

    def __init__(self, what: str, *, code: int = 0, status: str = "", message: str = "", fix: str = "") -> None:
        super().__init__(what, fix=fix)
        self.code, self.status, self.message = code, status, message


class Unauthenticated(GoogleError):
    """There are no credentials, or Google rejects them."""


class OutOfCapacity(GoogleError):
    """No quota or no such machine in this region. Another region may have both."""


class NotFound(GoogleError):
    """The resource does not exist, or no longer."""


class Unreachable(GoogleError):
    """No response, or a retryable one. The request may have taken effect all the same."""


@dataclass
class GoogleClient:
    """A client for one project. Threads may share it."""

    project: str = ""
    retry: RetryPolicy = RETRY
    needed_for: str = "Google Cloud"  # for the message if google-auth is not installed
    _http: http.Client = field(default_factory=lambda: _http_client(), repr=False)
    _credentials: Any = field(default=None, repr=False)
    _default_project: str | None = field(default=None, repr=False)

    def request(
        self,
        service: Service,
        method: str,
        url: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        *,
        idempotent: bool | None = None,
    ) -> dict[str, Any]:
        """Send a request; return its JSON response.

        Args:
            service: The API, for messages and retries.
            method: GET, POST, …
            url: The address, as `service.url` returns it.
            body: A value to send as JSON.
            query: Parameters of the URL.
            idempotent: Whether it may be sent again; by default, unless the method is POST.

        Returns:
            The response; empty if it has no body.

        Raises:
            GoogleError: Google refused, or did not answer.
        """
        repeatable = method != "POST" if idempotent is None else idempotent
        policy = self.retry if repeatable else ONCE
        return retry(lambda: self._request_once(service, method, url, body, query), policy, on=Unreachable)

    def pages(
        self,
        service: Service,
        url: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield every page of a listing: a GET with `query`, or a POST with `body`."""
        method = "GET" if body is None else "POST"
        while True:
            page = self.request(service, method, url, body, query, idempotent=True)
            yield page
            token = page.get("nextPageToken")
            if not token:
                return
            if body is None:
                query = {**(query or {}), "pageToken": token}
            else:
                body = {**body, "pageToken": token}

    def wait(
        self, service: Service, operation: Mapping[str, Any], url: str, *, poll_s: float, within_s: float, fix: str
    ) -> dict[str, Any]:
        """Wait for a long-running operation, which `url` shows; return its response. Raises GoogleError for its error.

        `fix` is suggested if it takes longer than `within_s`.
        """
        for waited_s in poll(poll_s, within_s=within_s):
            if waited_s:
                operation = self.request(service, "GET", url)
            if operation.get("done"):
                break
        else:
            raise GoogleError(f"{operation['name']} has not finished within {within_s:.0f} s", fix=fix)
        if "error" in operation:
            message = str(operation["error"].get("message", "no reason given"))
            logs = f"its log: gcloud logging read resource.type={service.name}.googleapis.com/Endpoint"
            raise GoogleError(f"{service.title}: {message}", message=message, fix=logs)
        response: dict[str, Any] = operation.get("response", {})
        return response

    @property
    def account(self) -> str:
        """The service account's address; empty for a user's credentials."""
        email = getattr(self._credentials, "service_account_email", "") or ""
        return email if "@" in email else ""

    def default_project(self) -> str | None:
        """Return the project of the credentials, if they name one."""
        self._load_credentials()
        return self._default_project

    def _request_once(
        self, service: Service, method: str, url: str, body: Mapping[str, Any] | None, query: Mapping[str, str] | None
    ) -> dict[str, Any]:
        response = self._send(method, url, body, query)
        if response.status == 401:  # the token was revoked, or expired early: retry with a new one
            with _token_errors():
                self._credentials.refresh(_token_transport())
            response = self._send(method, url, body, query)
        if not response.ok:
            raise google_error(service, response.status, response.text, self.project)
        content: dict[str, Any] = response.json()
        return content

    def _send(
        self, method: str, url: str, body: Mapping[str, Any] | None, query: Mapping[str, str] | None
    ) -> http.Response:
        from headway.core import http

        headers: dict[str, str] = {}
        self._load_credentials()
        with _token_errors():  # adds the token, and the quota project of a user's credentials
            self._credentials.before_request(_token_transport(), method, url, headers)
        try:
            return self._http.request(method, url, query=query, json=body, headers=headers)
        except http.ConnectionFailed as error:
            raise _unreachable(error.problem.what) from error

    def _load_credentials(self) -> None:
        if self._credentials is not None:
            return
        try:
            _token_transport()
        except ImportError:
            raise MissingExtra("gcp", needed_for=self.needed_for) from None
        try:
            self._credentials, self._default_project = google_credentials(SCOPE)
        except Denied as error:
            raise Unauthenticated(error.problem.what, status="UNAUTHENTICATED", fix=error.problem.fix) from error
        except Transient as error:
            raise _unreachable(error.problem.what) from error


def _http_client() -> http.Client:
    from headway.core import http  # costs milliseconds: `plan` for Vertex AI sends no request

    return http.Client(timeout_s=REQUEST_TIMEOUT_S)


def _token_transport() -> Any:
    return import_module("google.auth.transport.requests").Request()


@contextmanager
def _token_errors() -> Iterator[None]:
    failures: Any = import_module("google.auth.exceptions")
    try:
        yield
    except failures.RefreshError as error:
        if error.retryable:
            raise _unreachable(str(error)) from error
        what = f"Google rejects the credentials: {_shorten(str(error))}"
        raise Unauthenticated(what, status="UNAUTHENTICATED", fix=GOOGLE_LOGIN) from error
    except failures.TransportError as error:
        raise _unreachable(str(error)) from error


def _unreachable(reason: str) -> Unreachable:
    return Unreachable(f"Google does not answer: {_shorten(reason)}", fix="try again in a few minutes")


def google_error(service: Service, code: int, text: str, project: str) -> GoogleError:
    """Turn an HTTP error response into a GoogleError with a command that helps."""
    status, message = _error_body(text)
    if code in service.busy:
        what = f"Google answers {code}: {_shorten(message)}"
        return Unreachable(what, code=code, status=status, message=message, fix="try again in a few minutes")
    apis = " ".join(f"{name}.googleapis.com" for name in dict.fromkeys([service.name, "logging"]))
    for pattern, kind, what, fix in _ERROR_RULES:
        if re.search(pattern, f"{code} {status} {message}", re.IGNORECASE):
            short = what or f"{service.title}: {_shorten(message)}"
            fix = fix.format(project=project, role=service.role, api=f"{service.name}.googleapis.com", apis=apis)
            return kind(short, code=code, status=status, message=message, fix=fix)
    what = f"{service.title} answers {code}: {_shorten(message)}"
    return GoogleError(what, code=code, status=status, message=message)


_GRANT = "gcloud projects add-iam-policy-binding {project} --member=user:$(gcloud config get account) --role=roles/"
_QUOTAS = "https://console.cloud.google.com/iam-admin/quotas?project={project}&service={api}"
# (pattern in the response, error class, message, fix). The first match wins.
_ERROR_RULES: tuple[tuple[str, type[GoogleError], str, str], ...] = (
    (r"^404 ", NotFound, "", ""),
    (r"^401 ", Unauthenticated, "no Google credentials were found", GOOGLE_LOGIN),
    (
        r"SERVICE_DISABLED|has not been used in project|it is disabled",
        GoogleError,
        "the API is not enabled in this project",
        "gcloud services enable {apis} --project={project}",
    ),
    (r"iam\.serviceAccounts\.actAs|act as service account", GoogleError, "", _GRANT + "iam.serviceAccountUser"),
    (r"^403 ", GoogleError, "", _GRANT + "{role}"),
    (
        r"^429 |RESOURCE_EXHAUSTED|quota",
        OutOfCapacity,
        "",
        f"ask for more at {_QUOTAS}; or give the target's entry a `fallback`",
    ),
    (
        r"(?:machine|accelerator)[^.]*not (?:supported|available)|not available in (?:this )?(?:region|location|zone)",
        OutOfCapacity,
        "",
        "another region or machine; or give the target's entry a `fallback`",
    ),
    (
        r"image.*(?:not found|not exist)|(?:not found|not exist).*image",
        GoogleError,
        "",
        "headway image --push; or fix image.uri",
    ),
)


def _error_body(text: str) -> tuple[str, str]:
    """Parse status and message from a response that may not be JSON."""
    try:
        error = json_of(text)["error"]
        details = " ".join(str(detail.get("reason", "")) for detail in error.get("details", []))
        return str(error.get("status", "")), f"{error.get('message', '')} {details}".strip()
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", text.strip()


def _shorten(text: str) -> str:
    return " ".join(text.split())[:400]
