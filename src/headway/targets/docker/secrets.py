"""Cloud credentials and secrets for containers: where the client finds them, and how they are injected.

Values are written to memory only.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import BadInput, TargetError
from headway.packaging.dockerfile import HOME_DIR
from headway.storage.secrets import parse

if TYPE_CHECKING:
    from headway.core.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Cloud:
    """How one cloud's libraries find credentials."""

    schemes: tuple[str, ...]
    secret: tuple[str, ...] = ()  # variables that hold a secret
    plain: tuple[str, ...] = ()  # variables that do not
    at: str = ""  # the folder of its credential files in the container
    files: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # name in container -> (variable, default path)


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
        at=f"{HOME_DIR}/.aws",
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
        at=f"{HOME_DIR}/.config/gcloud",
        files={
            "application_default_credentials.json": (
                "GOOGLE_APPLICATION_CREDENTIALS",
                "~/.config/gcloud/application_default_credentials.json",
            )
        },
    ),
}


def clouds_of(job: Mapping[str, Any]) -> dict[str, Cloud]:
    """Return the clouds that hold the job's folders, data and secrets."""
    data = job.get("data", {})
    urls = [str(source["source"]) for part in ("train", "val", "test") for source in data.get(part, ())]
    urls += [str(job["outputs"]), str(job.get("export", {}).get("to") or ""), str(job.get("init_from") or "")]
    urls += [str(secret["ref"]) for secret in job.get("secrets", {}).values()]
    schemes = {url.partition("://")[0] for url in urls if "://" in url}
    return {name: cloud for name, cloud in CLOUDS.items() if schemes & {*cloud.schemes}}


def read_credentials(cloud: Cloud, env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, bytes]]:
    """Read the user's credentials for one cloud: secret variables, and files by their name in the container."""
    variables = {name: env[name] for name in cloud.secret if env.get(name)}
    files = {}
    for name, (variable, default) in cloud.files.items():
        path = Path(env.get(variable) or default).expanduser()
        if path.is_file():
            files[name] = path.read_bytes()
    return variables, files


# Injecting secrets: files in a private folder in this machine's memory, removed with the run


MEMORY_DIR = Path("/dev/shm")
CLIENT_SIDE_KINDS = ("env", "file")  # kinds of reference that only this machine can resolve


def secrets_dir(url: str) -> Path:
    """Return the folder of a run's secrets. It depends on the run's URL only, so that it is found without a record."""
    outputs, _, run = url.rpartition("/")
    return MEMORY_DIR / f"headway-{os.getuid()}" / f"{hashlib.sha256(outputs.encode()).hexdigest()[:8]}-{run}"


def client_secrets(plan: Plan) -> dict[str, str]:
    """Return the job's secrets that the client must inject, as variable and reference.

    Secrets in a cloud are fetched in the container.
    """
    references = {name: str(secret["ref"]) for name, secret in plan.job.get("secrets", {}).items()}
    return {name: reference for name, reference in references.items() if parse(reference).kind in CLIENT_SIDE_KINDS}


def write_secrets(plan: Plan, url: str, resolve: Callable[[str], str]) -> None:
    """Write the secrets: one folder per node, which its supervisor empties, and one per cloud with credential files."""
    values = {name: resolve(reference) for name, reference in client_secrets(plan).items()}
    files: dict[str, Mapping[str, bytes]] = {}
    for name, cloud in clouds_of(plan.job).items():
        variables, files[name] = read_credentials(cloud, os.environ)
        values = {**variables, **values}
    remove_secrets(url)
    folder = _create_private_dir(secrets_dir(url))
    for node in range(plan.nodes):
        _write_files(folder / f"node-{node}", {variable: value.encode() for variable, value in values.items()})
    for name, content in files.items():
        _write_files(folder / name, content)


def remove_secrets(url: str) -> None:
    shutil.rmtree(secrets_dir(url), ignore_errors=True)


def _create_private_dir(folder: Path) -> Path:
    _require_tmpfs(MEMORY_DIR)
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    parent = folder.parent.lstat()
    if not stat.S_ISDIR(parent.st_mode) or parent.st_uid != os.getuid() or parent.st_mode & 0o077:
        # /dev/shm is writable by all users: another one may have created the folder first, to read the secrets.
        raise TargetError(
            f"{folder.parent} must be owned by you with mode 0700", fix=f"ls -ld {folder.parent}, and remove it"
        )
    folder.mkdir(mode=0o700)
    return folder


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(mode=0o700)
    for name, content in files.items():
        with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)


def _require_tmpfs(root: Path) -> None:
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        mounts = []
    if not any(mount[1] == str(root) and mount[2] in ("tmpfs", "ramfs") for mount in mounts):
        fix = "mount -t tmpfs tmpfs /dev/shm; or a secret of gcp-sm:// or aws-sm://, which never touches this machine"
        raise BadInput(f"{root} is not in memory here, and a secret must not be written to a disk", fix=fix)
