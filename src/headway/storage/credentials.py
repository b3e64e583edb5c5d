"""Credentials, one section per cloud: used by stores, by secrets and by clients of the clouds' APIs.

Each cloud's own library finds them: google-auth, boto3, azure-identity. They are imported on use.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

from headway.core.errors import Denied, MissingExtra, StoreError, Transient
from headway.core.retry import RetryPolicy, retry

GOOGLE_LOGIN = "gcloud auth application-default login"
AMAZON_LOGIN = "aws sso login  (or: aws configure)"


class Credentials(ABC):
    """Credential provider: asks the cloud's own library whenever obstore needs a token, and remembers why it failed.

    Retries: the token server of a pod may answer only seconds after the pod has started.
    """

    def __init__(self, retry: RetryPolicy) -> None:
        self._retry = retry
        self._lock = Lock()
        self.error: StoreError | None = None
        self.account = ""  # the account's name, where the library tells it

    @abstractmethod
    def fetch(self) -> Mapping[str, Any]:
        """Fetch credentials in obstore's format. Raises Denied or Transient if there are none."""

    def __call__(self) -> Mapping[str, Any]:
        with self._lock:
            try:
                fetched = retry(self.fetch, self._retry)
            except StoreError as error:
                self.error = error
                raise
            self.error = None
            return fetched


_shared: dict[tuple[object, ...], Credentials] = {}
_shared_lock = Lock()


def shared_credentials(
    factory: Callable[[RetryPolicy], Credentials], retry: RetryPolicy, variables: tuple[str, ...]
) -> Credentials:
    """Return credentials shared by all stores of this process, so that a token is fetched once.

    `variables` are prefixes of the environment variables that select the credentials; other values get another set.
    """
    chosen = sorted((name, value) for name, value in os.environ.items() if name.startswith((*variables, "HOME")))
    key = (factory, retry, *chosen)
    with _shared_lock:
        if key not in _shared:
            _shared[key] = factory(retry)
        return _shared[key]


def is_vendor_machine(vendor: str) -> bool:
    """Return whether this machine is the vendor's: then a metadata server that does not answer yet is retried."""
    try:
        return vendor in Path("/sys/class/dmi/id/sys_vendor").read_text()
    except OSError:
        return False


def unreachable(what: str, error: Exception) -> Transient:
    return Transient(f"{what} cannot be reached: {error}")


# Google


_STORAGE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_MIN_LIFETIME = timedelta(minutes=6)  # obstore asks again when less than four minutes are left: give it more than that
_OBSTORE_READS = ("authorized_user", "service_account")  # types of credential file that obstore reads by itself


def google_tokens(retry: RetryPolicy) -> Credentials | None:
    """Return tokens for gs://; None if google-auth is not installed and obstore finds the credentials by itself."""
    try:
        import_module("google.auth.transport.requests")
    except ImportError:
        _check_credential_file()
        return None
    return shared_credentials(_GoogleTokens, retry, ("GOOGLE_", "GCE_", "CLOUDSDK_"))


class _GoogleTokens(Credentials):
    def __init__(self, retry: RetryPolicy) -> None:
        super().__init__(retry)
        self._credentials: Any = None

    def fetch(self) -> Mapping[str, Any]:
        failures: Any = import_module("google.auth.exceptions")
        request = import_module("google.auth.transport.requests").Request()
        try:
            if self._credentials is None:
                self._credentials, _ = google_credentials(_STORAGE_SCOPE)
            if self._needs_refresh():
                self._credentials.refresh(request)
        except failures.TransportError as error:
            raise unreachable("Google's token server", error) from error
        except failures.RefreshError as error:
            if error.retryable:
                raise unreachable("Google's token server", error) from error
            raise Denied(f"Google rejected the credentials: {error}", fix=GOOGLE_LOGIN) from error
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
        raise Denied(f"no Google credentials: {str(error).splitlines()[0]}", fix=GOOGLE_LOGIN) from error
    return import_module("google.auth.credentials").with_scopes_if_required(credentials, [scope]), project


def _has_metadata_server() -> bool:
    if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return False  # the file is invalid: waiting does not help
    return bool(os.environ.get("GCE_METADATA_HOST")) or is_vendor_machine("Google")


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


# Amazon

# botocore renews its own keys in time; obstore only has to ask again, which it does when five minutes are left.
_TOKEN_LIFETIME = timedelta(minutes=10)


def amazon_keys(retry: RetryPolicy) -> AmazonKeys | None:
    """Return keys for s3://; None if boto3 is not installed and obstore finds them by itself."""
    try:
        import_module("boto3")
    except ImportError:
        _check_key_source()
        return None
    keys = shared_credentials(AmazonKeys, retry, ("AWS_",))
    assert isinstance(keys, AmazonKeys)
    return keys


def amazon_session(tries: int = 3) -> Any:
    """Return a boto3 session; on Amazon's machines, it asks the metadata server `tries` times instead of once."""
    core = import_module("botocore.session").get_session()
    if is_vendor_machine("Amazon"):
        core.set_config_variable("metadata_service_num_attempts", tries)
    return import_module("boto3").Session(botocore_session=core)


def amazon_region(session: Any = None) -> str:
    """Return the region of the environment, or else of the session's profile; empty if neither names one."""
    chosen = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return chosen or (session.region_name if session is not None else None) or ""


@contextmanager
def amazon_errors(passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Map boto3's errors: Transient if a server does not answer, else Denied. Those of `passing` are raised as is."""
    failures: Any = import_module("botocore.exceptions")
    try:
        yield
    except passing:
        raise
    except (failures.NoCredentialsError, failures.PartialCredentialsError) as error:
        raise Denied("no AWS credentials", fix=AMAZON_LOGIN) from error
    except (failures.HTTPClientError, failures.ConnectionError, failures.MetadataRetrievalError) as error:
        raise Transient(f"AWS cannot be reached: {error}") from error
    except (failures.BotoCoreError, failures.ClientError) as error:
        raise Denied(f"AWS gives no credentials: {error}", fix=AMAZON_LOGIN) from error


class AmazonKeys(Credentials):
    def __init__(self, retry: RetryPolicy) -> None:
        super().__init__(retry)
        self.session: Any = amazon_session(retry.tries)

    def fetch(self) -> Mapping[str, Any]:
        with amazon_errors():
            credentials = self.session.get_credentials()
            keys = credentials.get_frozen_credentials() if credentials else None
        if keys is None or not keys.access_key:
            raise Denied("no AWS credentials", fix=AMAZON_LOGIN)
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.now(timezone.utc) + _TOKEN_LIFETIME,
        }


def _check_key_source() -> None:
    """Raise MissingExtra for keys in ~/.aws: obstore alone knows variables, web identity, containers, instances."""
    if os.environ.get("AWS_ACCESS_KEY_ID") or os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return
    home = Path.home() / ".aws"
    if os.environ.get("AWS_PROFILE") or (home / "credentials").exists() or (home / "config").exists():
        raise MissingExtra("aws", needed_for="s3:// with the credentials of ~/.aws")


# Azure

_AZURE_SCOPE = "https://storage.azure.com/.default"


def azure_tokens(retry: RetryPolicy) -> Credentials | None:
    """Return tokens for az://; None if azure-identity is not installed and obstore finds them by itself."""
    try:
        import_module("azure.identity")
    except ImportError:
        return None
    return shared_credentials(_AzureTokens, retry, ("AZURE_", "IDENTITY_", "MSI_"))


class _AzureTokens(Credentials):
    def __init__(self, retry: RetryPolicy) -> None:
        super().__init__(retry)
        self._chain: Any = import_module("azure.identity").DefaultAzureCredential()

    def fetch(self) -> Mapping[str, Any]:
        failures: Any = import_module("azure.core.exceptions")
        try:
            token = self._chain.get_token(_AZURE_SCOPE)
        except failures.ClientAuthenticationError as error:
            raise Denied(f"no Azure credentials: {str(error).splitlines()[0]}", fix="az login") from error
        except failures.AzureError as error:
            raise unreachable("Azure's token server", error) from error
        return {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, timezone.utc)}
