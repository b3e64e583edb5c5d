"""s3://bucket/folder; also MinIO, R2 and others through AWS_ENDPOINT_URL. Credentials are boto3's chain where boto3 is
installed: profiles, SSO, assumed roles, web identity, containers, instances.
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

from headway.core.errors import Denied, MissingExtra, StoreError, Transient
from headway.core.retry import RetryPolicy
from headway.storage.object_store import (
    Credentials,
    client_options,
    is_vendor_machine,
    retry_config,
    shared_credentials,
    split_bucket,
)

# botocore renews its own keys in time; obstore only has to ask again, which it does when five minutes are left.
_TOKEN_LIFETIME = timedelta(minutes=10)
_ACTIONS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListBucket")


@dataclass(slots=True)
class AmazonCloud:
    url: str
    bucket: str
    folder: str
    endpoint: str | None
    updates_by_generation: bool = False
    _credentials: Credentials | None = None
    _region: str = ""

    @classmethod
    def from_url(cls, url: str, endpoint: str | None) -> AmazonCloud:
        bucket, folder = split_bucket(url, "s3://bucket/folder")
        address = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        return cls(url.rstrip("/"), bucket, folder, address.rstrip("/") or None)

    def connect(self, retry: RetryPolicy, *, retries: int, request_s: float) -> Any:
        from obstore.store import S3Store

        if not self._region:
            self._choose_credentials(retry)
        config: dict[str, Any] = {
            "region": self._region,
            "conditional_put": "etag",
            "disable_bulk_delete": True,  # a plain DELETE works with every S3-compatible store
        }
        if self.endpoint:
            config["endpoint"] = config["aws_endpoint_url_s3"] = self.endpoint
        return S3Store(
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
        return "aws sso login  (or: aws configure)"

    def create_command(self) -> str:
        return f"aws s3 mb s3://{self.bucket} --region {self._region or 'us-east-1'}"

    def grant_command(self) -> str:
        resources = [f"arn:aws:s3:::{self.bucket}", f"arn:aws:s3:::{self.bucket}/*"]
        statement = {"Effect": "Allow", "Action": list(_ACTIONS), "Resource": resources}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]}, separators=(",", ":"))
        return (
            f"aws iam put-role-policy --role-name ROLE --policy-name headway-{self.bucket} "
            f"--policy-document '{policy}'  (ROLE: see aws sts get-caller-identity)"
        )

    def _choose_credentials(self, retry: RetryPolicy) -> None:
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        try:
            import_module("boto3")
        except ImportError:
            _check_key_source()
            self._region = region or "us-east-1"
            return
        keys = shared_credentials(_AmazonKeys, retry, ("AWS_",))
        assert isinstance(keys, _AmazonKeys)
        self._credentials = keys
        self._region = region or keys.session.region_name or "us-east-1"


class _AmazonKeys(Credentials):
    def __init__(self, retry: RetryPolicy) -> None:
        super().__init__(retry)
        core = import_module("botocore.session").get_session()
        if is_vendor_machine("Amazon"):  # by default botocore asks the metadata server once
            core.set_config_variable("metadata_service_num_attempts", retry.tries)
        self.session: Any = import_module("boto3").Session(botocore_session=core)

    def fetch(self) -> Mapping[str, Any]:
        failures: Any = import_module("botocore.exceptions")
        try:
            credentials = self.session.get_credentials()
            keys = credentials.get_frozen_credentials() if credentials else None
        except (failures.HTTPClientError, failures.MetadataRetrievalError) as error:
            raise Transient(f"the server that gives AWS credentials cannot be reached: {error}") from error
        except (failures.BotoCoreError, failures.ClientError) as error:
            raise Denied(f"AWS gives no credentials: {error}", fix="aws sso login  (or: aws configure)") from error
        if keys is None or not keys.access_key:
            raise Denied("no AWS credentials", fix="aws sso login  (or: aws configure)")
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
