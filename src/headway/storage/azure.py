"""az://container/folder, with the storage account from AZURE_STORAGE_ACCOUNT; or az://container@account/folder.

Credentials: AZURE_STORAGE_CONNECTION_STRING, an account key, a SAS token, else azure-identity's default chain where it
is installed (workload identity, managed identity, the `az` login), else obstore's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.core.errors import BadInput
from headway.storage.credentials import azure_tokens
from headway.storage.object_store import CloudFolder, ConnectOptions, split_bucket

_EXAMPLE = "az://container/folder or az://container@account/folder"
# Azurite's account, the same everywhere and published by Microsoft: not a secret.
_EMULATOR = {
    "AccountName": "devstoreaccount1",
    "AccountKey": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    "BlobEndpoint": "http://127.0.0.1:10000/devstoreaccount1",
}


@dataclass(kw_only=True, slots=True)
class AzureCloud(CloudFolder):
    account: str
    settings: Mapping[str, str]  # account_key or sas_key, if either is given
    updates_by_generation: bool = False

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
            url=url.rstrip("/"),
            bucket=container,
            folder=folder,
            endpoint=address.rstrip("/") or None,
            account=account,
            settings={name: value for name, value in settings.items() if value},
        )

    def connect(self, options: ConnectOptions) -> Any:
        from obstore.store import AzureStore

        if self.credentials is None and not self.settings:
            self.credentials = azure_tokens(options.retry)
        config: dict[str, Any] = {"account_name": self.account, **self.settings}
        if self.endpoint:
            config["endpoint"] = self.endpoint
        return AzureStore(self.bucket, **options.keywords(self, config, self.endpoint))

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
