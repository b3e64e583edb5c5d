"""What the three clouds have in common, and where they differ in words: who may, how to log in, what to create."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from headway.errors import BadInput, StoreError, Transient
from headway.storage.patience import Patience, keep_trying


class Cloud(Protocol):
    """One bucket (or container) of one cloud, and a folder in it."""

    url: str
    bucket: str
    updates_by_generation: bool  # GCS compares a number that listings do not tell; the others compare the ETag

    def connect(self, patience: Patience, *, retries: int, request_s: float) -> Any:
        """An obstore client. Its own retries are for parts of large uploads; single requests are retried here."""

    def credential_error(self) -> StoreError | None:
        """Why no credentials could be had, if that is what went wrong last."""

    def login_command(self) -> str: ...

    def create_command(self) -> str: ...

    def grant_command(self) -> str: ...


class Credentials(ABC):
    """Asks one of the clouds' own libraries whenever obstore wants a token, and remembers why it got none.

    The server that gives tokens to pods may answer only seconds after a pod has started: it is asked again.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._lock = Lock()
        self.error: StoreError | None = None
        self.account = ""  # who we are, where the library tells it

    @abstractmethod
    def fetch(self) -> Mapping[str, Any]:
        """In the form that obstore takes. Denied or Transient where there is nothing to be had."""

    def __call__(self) -> Mapping[str, Any]:
        with self._lock:
            try:
                fetched = keep_trying(self.fetch, self._patience)
            except StoreError as error:
                self.error = error
                raise
            self.error = None
            return fetched


_shared: dict[tuple[object, ...], Credentials] = {}
_shared_lock = Lock()


def shared_credentials(
    kind: Callable[[Patience], Credentials], patience: Patience, variables: tuple[str, ...]
) -> Credentials:
    """One for all stores of this process: a token is fetched once, not for each store that is opened.

    `variables` are the beginnings of those that choose the credentials; with other values, others are made.
    """
    chosen = sorted((name, value) for name, value in os.environ.items() if name.startswith((*variables, "HOME")))
    key = (kind, patience, *chosen)
    with _shared_lock:
        if key not in _shared:
            _shared[key] = kind(patience)
        return _shared[key]


def split_bucket(url: str, example: str) -> tuple[str, str]:
    """scheme://bucket/some/folder → bucket, some/folder."""
    bucket, _, folder = url.partition("://")[2].partition("/")
    if not bucket:
        raise BadInput(f"{url} names no bucket", fix=f"write it as {example}")
    return bucket, folder.strip("/")


def client_options(patience: Patience, endpoint: str | None, request_s: float) -> dict[str, Any]:
    return {
        "allow_http": bool(endpoint and endpoint.startswith("http://")),
        "connect_timeout": timedelta(seconds=patience.connect_s),
        "timeout": timedelta(seconds=request_s),
    }


def retry_config(patience: Patience, retries: int) -> dict[str, Any]:
    return {
        "max_retries": retries,
        "retry_timeout": timedelta(seconds=patience.total_s),
        "backoff": {
            "init_backoff": timedelta(seconds=patience.first_pause_s),
            "max_backoff": timedelta(seconds=patience.longest_pause_s),
            "base": 2,
        },
    }


def runs_on(vendor: str) -> bool:
    """Is this machine the vendor's? Then a metadata server that does not answer yet is worth waiting for."""
    try:
        return vendor in Path("/sys/class/dmi/id/sys_vendor").read_text()
    except OSError:
        return False


def unreachable(what: str, error: Exception) -> Transient:
    return Transient(f"{what} cannot be reached: {error}")
