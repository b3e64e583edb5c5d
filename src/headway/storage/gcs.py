"""gs://bucket/folder. Credentials are Google's application default ones: a user's, a service account's key, workload
identity (federation, impersonation) or the metadata server's. STORAGE_EMULATOR_HOST is honoured.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from importlib import import_module
from pathlib import Path
from typing import Any

from headway.core.errors import Denied, MissingExtra, StoreError
from headway.core.retry import RetryPolicy
from headway.storage.object_store import (
    Credentials,
    client_options,
    is_vendor_machine,
    retry_config,
    shared_credentials,
    split_bucket,
    unreachable,
)

SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_MIN_LIFETIME = timedelta(minutes=6)  # obstore asks again when less than four minutes are left: give it more than that
_OBSTORE_READS = ("authorized_user", "service_account")  # types of credential file that obstore reads by itself
_LOGIN_COMMAND = "gcloud auth application-default login"


@dataclass(slots=True)
class GoogleCloud:
    url: str
    bucket: str
    folder: str
    endpoint: str | None
    updates_by_generation: bool = True
    _credentials: Credentials | None = None

    @classmethod
    def from_url(cls, url: str, endpoint: str | None) -> GoogleCloud:
        bucket, folder = split_bucket(url, "gs://bucket/folder")
        return cls(url.rstrip("/"), bucket, folder, endpoint.rstrip("/") if endpoint else None)

    def connect(self, retry: RetryPolicy, *, retries: int, request_s: float) -> Any:
        from obstore.store import GCSStore

        if self._credentials is None:
            self._credentials = self._choose_credentials(retry)
        endpoint = self.endpoint or _emulator_url()
        return GCSStore(
            self.bucket,
            prefix=self.folder or None,
            config={"base_url": endpoint} if endpoint else {},
            client_options=client_options(retry, endpoint, request_s),  # type: ignore[arg-type]
            retry_config=retry_config(retry, retries),  # type: ignore[arg-type]
            credential_provider=self._credentials,  # type: ignore[arg-type]
        )

    def credential_error(self) -> StoreError | None:
        return self._credentials.error if self._credentials else None

    def login_command(self) -> str:
        return _LOGIN_COMMAND

    def create_command(self) -> str:
        return f"gcloud storage buckets create gs://{self.bucket} --location=us-central1"

    def grant_command(self) -> str:
        account = self._credentials.account if self._credentials else ""
        member = f"serviceAccount:{account}" if account else 'user:"$(gcloud config get account)"'
        return (
            f"gcloud storage buckets add-iam-policy-binding gs://{self.bucket} "
            f"--member={member} --role=roles/storage.objectUser"
        )

    def _choose_credentials(self, retry: RetryPolicy) -> Credentials | None:
        if not self.endpoint and _emulator_url():
            return _EmulatorToken(retry)
        try:
            import_module("google.auth.transport.requests")
        except ImportError:
            _check_credential_file()
            return None
        return shared_credentials(_GoogleTokens, retry, ("GOOGLE_", "GCE_", "CLOUDSDK_"))


class _EmulatorToken(Credentials):
    def fetch(self) -> Mapping[str, Any]:
        return {"token": "emulator", "expires_at": None}


class _GoogleTokens(Credentials):
    def __init__(self, retry: RetryPolicy) -> None:
        super().__init__(retry)
        self._credentials: Any = None

    def fetch(self) -> Mapping[str, Any]:
        failures: Any = import_module("google.auth.exceptions")
        request = import_module("google.auth.transport.requests").Request()
        try:
            if self._credentials is None:
                self._credentials, _ = google_credentials(SCOPE)
            if self._needs_refresh():
                self._credentials.refresh(request)
        except failures.TransportError as error:
            raise unreachable("Google's token server", error) from error
        except failures.RefreshError as error:
            if error.retryable:
                raise unreachable("Google's token server", error) from error
            raise Denied(f"Google refuses the credentials: {error}", fix=_LOGIN_COMMAND) from error
        self._record_account()
        return {"token": self._credentials.token, "expires_at": self._expiry()}

    def _needs_refresh(self) -> bool:
        expiry = self._expiry()
        return not self._credentials.token or (
            expiry is not None and expiry - datetime.now(timezone.utc) < _MIN_LIFETIME
        )

    def _expiry(self) -> datetime | None:
        expiry: datetime | None = self._credentials.expiry  # Google's datetimes are naive, and in UTC
        return expiry.replace(tzinfo=timezone.utc) if expiry is not None and expiry.tzinfo is None else expiry

    def _record_account(self) -> None:
        email = getattr(self._credentials, "service_account_email", None)
        if email and "@" in email:  # until it is refreshed, a machine's account is called `default`
            self.account = email


def google_credentials(scope: str) -> tuple[Any, str | None]:
    """Return application default credentials, and their project if known.

    Raises Transient if this machine's metadata server has not answered yet.
    """
    failures: Any = import_module("google.auth.exceptions")
    try:
        # Scopes are added below: passing them here would also look up the project, which we do not need.
        credentials, project = import_module("google.auth").default()
    except failures.DefaultCredentialsError as error:
        if _has_metadata_server():
            raise unreachable("Google's metadata server", error) from error
        raise Denied(f"no Google credentials: {str(error).splitlines()[0]}", fix=_LOGIN_COMMAND) from error
    return import_module("google.auth.credentials").with_scopes_if_required(credentials, [scope]), project


def _has_metadata_server() -> bool:
    if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return False  # the file is invalid: waiting does not help
    return bool(os.environ.get("GCE_METADATA_HOST")) or is_vendor_machine("Google")


def _emulator_url() -> str | None:
    host = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    if not host:
        return None
    return host if "://" in host else f"http://{host}"


def _check_credential_file() -> None:
    from_env = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    default_path = Path.home() / ".config/gcloud/application_default_credentials.json"
    path = Path(from_env) if from_env else default_path
    try:
        kind = json.loads(path.read_text()).get("type")
    except (OSError, ValueError, AttributeError):
        return  # obstore reports what is wrong with it, or asks the metadata server
    if kind not in _OBSTORE_READS:
        raise MissingExtra("gcp", needed_for=f"gs:// with credentials of the kind {kind}")
