"""The cloud credentials of whoever launches, for containers that use a cloud. Named here; values go to memory only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.image.blueprint import HOME


@dataclass(frozen=True, kw_only=True, slots=True)
class Cloud:
    """How one cloud's libraries find credentials."""

    schemes: tuple[str, ...]
    secret: tuple[str, ...] = ()  # variables that hold a secret
    plain: tuple[str, ...] = ()  # variables that do not
    at: str = ""  # the folder of its credential files, inside
    files: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # name inside -> (variable, default path)


CLOUDS = {
    "aws": Cloud(
        schemes=("s3", "aws-sm"),
        secret=("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
        plain=(
            "AWS_ALLOW_HTTP",
            "AWS_DEFAULT_REGION",
            "AWS_ENDPOINT_URL",
            "AWS_ENDPOINT_URL_S3",
            "AWS_PROFILE",
            "AWS_REGION",
        ),
        at=f"{HOME}/.aws",
        files={
            "config": ("AWS_CONFIG_FILE", "~/.aws/config"),
            "credentials": ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        },
    ),
    "azure": Cloud(
        schemes=("az",),
        secret=(
            *("AZURE_CLIENT_SECRET", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_KEY"),
            *(
                "AZURE_STORAGE_CONNECTION_STRING",
                "AZURE_STORAGE_KEY",
                "AZURE_STORAGE_SAS_KEY",
                "AZURE_STORAGE_SAS_TOKEN",
            ),
        ),
        plain=(
            *("AZURE_CLIENT_ID", "AZURE_ENDPOINT", "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"),
            *("AZURE_STORAGE_ENDPOINT", "AZURE_TENANT_ID"),
        ),
    ),
    "google": Cloud(
        schemes=("gs", "gcp-sm"),
        plain=("GOOGLE_CLOUD_PROJECT", "STORAGE_EMULATOR_HOST"),
        at=f"{HOME}/.config/gcloud",
        files={
            "application_default_credentials.json": (
                "GOOGLE_APPLICATION_CREDENTIALS",
                "~/.config/gcloud/application_default_credentials.json",
            )
        },
    ),
}


def used_by(job: Mapping[str, Any]) -> dict[str, Cloud]:
    """The clouds that a job's folders, data and secrets lie in."""
    data = job.get("data", {})
    urls = [str(source["source"]) for part in ("train", "val", "test") for source in data.get(part, ())]
    urls += [str(job["outputs"]), str(job.get("export", {}).get("to") or ""), str(job.get("init_from") or "")]
    urls += [str(secret["ref"]) for secret in job.get("secrets", {}).values()]
    schemes = {url.partition("://")[0] for url in urls if "://" in url}
    return {name: cloud for name, cloud in CLOUDS.items() if schemes & {*cloud.schemes}}


def held(cloud: Cloud, env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, bytes]]:
    """What this shell and user have of it: secret variables, and files by their name inside."""
    variables = {name: env[name] for name in cloud.secret if env.get(name)}
    files = {}
    for name, (variable, default) in cloud.files.items():
        path = Path(env.get(variable) or default).expanduser()
        if path.is_file():
            files[name] = path.read_bytes()
    return variables, files
