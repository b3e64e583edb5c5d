"""s3://bucket/folder; also MinIO, R2 and others through AWS_ENDPOINT_URL. Credentials are boto3's chain where boto3 is
installed: profiles, SSO, assumed roles, web identity, containers, instances.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from headway.core.retry import RetryPolicy
from headway.storage.credentials import AMAZON_LOGIN, amazon_keys, amazon_region
from headway.storage.object_store import CloudFolder, ConnectOptions, split_bucket

_ACTIONS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListBucket")


@dataclass(kw_only=True, slots=True)
class AmazonCloud(CloudFolder):
    updates_by_generation: bool = False
    _region: str = ""

    @classmethod
    def from_url(cls, url: str, endpoint: str | None) -> AmazonCloud:
        bucket, folder = split_bucket(url, "s3://bucket/folder")
        address = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        return cls(url=url.rstrip("/"), bucket=bucket, folder=folder, endpoint=address.rstrip("/") or None)

    def connect(self, options: ConnectOptions) -> Any:
        from obstore.store import S3Store

        if not self._region:
            self._choose_credentials(options.retry)
        config: dict[str, Any] = {
            "region": self._region,
            "conditional_put": "etag",
            "disable_bulk_delete": True,  # a plain DELETE works with every S3-compatible store
        }
        if self.endpoint:
            config["endpoint"] = config["aws_endpoint_url_s3"] = self.endpoint
        return S3Store(self.bucket, **options.keywords(self, config, self.endpoint))

    def login_command(self) -> str:
        return AMAZON_LOGIN

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
        keys = amazon_keys(retry)
        self.credentials = keys
        self._region = amazon_region(keys.session if keys else None) or "us-east-1"
