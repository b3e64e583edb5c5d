"""gs://bucket/folder. Credentials are Google's application default ones: a user's, a service account's key, workload
identity (federation, impersonation) or the metadata server's. STORAGE_EMULATOR_HOST is honoured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.core.retry import RetryPolicy
from headway.storage.credentials import GOOGLE_LOGIN, Credentials, google_tokens
from headway.storage.object_store import CloudFolder, ConnectOptions, split_bucket


@dataclass(kw_only=True, slots=True)
class GoogleCloud(CloudFolder):
    updates_by_generation: bool = True

    @classmethod
    def from_url(cls, url: str, endpoint: str | None) -> GoogleCloud:
        bucket, folder = split_bucket(url, "gs://bucket/folder")
        address = endpoint.rstrip("/") if endpoint else None
        return cls(url=url.rstrip("/"), bucket=bucket, folder=folder, endpoint=address)

    def connect(self, options: ConnectOptions) -> Any:
        from obstore.store import GCSStore

        if self.credentials is None:
            self.credentials = self._choose_credentials(options.retry)
        endpoint = self.endpoint or _emulator_url()
        return GCSStore(self.bucket, **options.keywords(self, {"base_url": endpoint} if endpoint else {}, endpoint))

    def login_command(self) -> str:
        return GOOGLE_LOGIN

    def create_command(self) -> str:
        return f"gcloud storage buckets create gs://{self.bucket} --location=us-central1"

    def grant_command(self) -> str:
        account = self.credentials.account if self.credentials else ""
        member = f"serviceAccount:{account}" if account else 'user:"$(gcloud config get account)"'
        return (
            f"gcloud storage buckets add-iam-policy-binding gs://{self.bucket} "
            f"--member={member} --role=roles/storage.objectUser"
        )

    def _choose_credentials(self, retry: RetryPolicy) -> Credentials | None:
        if not self.endpoint and _emulator_url():
            return _EmulatorToken(retry)
        return google_tokens(retry)


class _EmulatorToken(Credentials):
    def fetch(self) -> Mapping[str, Any]:
        return {"token": "emulator", "expires_at": None}


def _emulator_url() -> str | None:
    host = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    if not host:
        return None
    return host if "://" in host else f"http://{host}"
