"""az://container/folder, with the storage account from AZURE_STORAGE_ACCOUNT; or az://container@account/folder.

Credentials: AZURE_STORAGE_CONNECTION_STRING, an account key, a SAS token, else azure-identity's default chain where it
is installed (workload identity, managed identity, the `az` login), else obstore's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import import_module
from typing import Any

from headway.core.errors import BadInput, Denied, StoreError
from headway.core.retry import RetryPolicy
from headway.storage.object_store import (
    Credentials,
    client_options,
    retry_config,
    shared_credentials,
    split_bucket,
    unreachable,
)

_SCOPE = "https://storage.azure.com/.default"
_EXAMPLE = "az://container/folder or az://container@account/folder"
# Azurite's account, the same everywhere and published by Microsoft: not a secret.
_EMULATOR = {
    "AccountName": "devstoreaccount1",
    "AccountKey": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    "BlobEndpoint": "http://127.0.0.1:10000/devstoreaccount1",
}


@dataclass(slots=True)
class AzureCloud:
    url: str
    bucket: str
    folder: str
    account: str
    endpoint: str | None
    settings: Mapping[str, str]  # account_key or sas_key, if either is given
    updates_by_generation: bool = False
    _credentials: Credentials | None = None

    @classmethod
    def from_url(cls, url: str, endpoint: str | None) -> AzureCloud:
        container, folder = split_bucket(url, _EXAMPLE)
        container, _, url_account = container.partition("@")
        connection = _connection_string()
        from_env = _variable("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME")
        account = url_account or from_env or connection.get("AccountName", "")
        if not container or not account:
            fix = f"export AZURE_STORAGE_ACCOUNT=NAME, or write {_EXAMPLE}"
            raise BadInput(f"{url} does not say which storage account the container is in", fix=fix)
        address = (
            endpoint or _variable("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT") or connection.get("BlobEndpoint", "")
        )
        key = _variable("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCESS_KEY")
        sas = _variable("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
        settings = {
            "account_key": key or connection.get("AccountKey", ""),
            "sas_key": sas or connection.get("SharedAccessSignature", ""),
        }
        return cls(
            url.rstrip("/"),
            container,
            folder,
            account,
            address.rstrip("/") or None,
            {name: value for name, value in settings.items() if value},
        )

    def connect(self, retry: RetryPolicy, *, retries: int, request_s: float) -> Any:
        from obstore.store import AzureStore

        if self._credentials is None and not self.settings:
            self._credentials = _identity(retry)
        config: dict[str, Any] = {"account_name": self.account, **self.settings}
        if self.endpoint:
            config["endpoint"] = self.endpoint
        return AzureStore(
            self.bucket,
            prefix=self.folder or None,
            config=config,  # type: ignore[arg-type]
            client_options=client_options(retry, self.endpoint, request_s),  # type: ignore[arg-type]
            retry_config=retry_config(retry, retries),  # type: ignore[arg-type]
            credential_provider=self._credentials,  # type: ignore[arg-type]
        )

    def credential_error(self) -> StoreError | None:
        return self._credentials.error if self._credentials else None

    def login_command(self) -> str:
        return "az login"

    def create_command(self) -> str:
        return f"az storage container create --name {self.bucket} --account-name {self.account} --auth-mode login"

    def grant_command(self) -> str:
        scope = f"$(az storage account show --name {self.account} --query id --output tsv)"
        return (
            'az role assignment create --role "Storage Blob Data Contributor" '
            '--assignee "$(az ad signed-in-user show --query id --output tsv)" '
            f'--scope "{scope}/blobServices/default/containers/{self.bucket}"'
        )


def _identity(retry: RetryPolicy) -> Credentials | None:
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
            token = self._chain.get_token(_SCOPE)
        except failures.ClientAuthenticationError as error:
            raise Denied(f"Azure gives no credentials: {str(error).splitlines()[0]}", fix="az login") from error
        except failures.AzureError as error:
            raise unreachable("Azure's token server", error) from error
        return {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, timezone.utc)}


def _connection_string() -> dict[str, str]:
    """Parse AZURE_STORAGE_CONNECTION_STRING; return Azurite's settings if the emulator is requested."""
    text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    if os.environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in ("1", "true"):
        text = "UseDevelopmentStorage=true"
    parts = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    if parts.get("UseDevelopmentStorage", "").lower() == "true":
        return _EMULATOR
    return parts


def _variable(*names: str) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")
