"""HTTP downloads: resumable, verified by hash, with credentials sent only to their own host.

The file appears under its name only when it is complete. A partial file is stored beside it with the server's ETag or
Last-Modified date: if the file has changed since, the download starts over and never mixes versions.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from headway.core import http
from headway.core.errors import BadInput, DiskFull, NotThere, StoreError, Transient
from headway.core.retry import Backoff, poll

Progress = Callable[[str, int, int], None]  # file name, bytes done, total bytes (0: unknown)

_BLOCK = 1 << 20
_MAX_REDIRECTS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """User and key as values, resolved from references by the caller and never printed."""

    user: str
    key: str

    def __repr__(self) -> str:
        return "Login(…)"

    @property
    def header(self) -> str:
        return http.basic(self.user, self.key)


def download(
    url: str,
    folder: Path,
    *,
    checksum: str = "",
    login: Login | None = None,
    progress: Progress | None = None,
    on_retry: Callable[[Transient], None] | None = None,
    retry_for_s: float = 600.0,
    timeout: float = 60.0,
) -> Path:
    """Download `url` into `folder`. `checksum` is `sha256:…` or `md5:…`, or the URL ends in `#sha256=…`.

    Resumes broken connections, and calls `on_retry` before each; raises Transient after `retry_for_s` seconds without
    a byte.
    """
    address, _, fragment = url.partition("#")
    checksum = checksum or fragment.replace("=", ":", 1)
    _check_url(address, checksum)
    folder.mkdir(parents=True, exist_ok=True)
    task = _Download(address, folder, login, progress or _no_progress, timeout)
    progressed_at, backoff = 0.0, Backoff(0.5, min(30.0, retry_for_s))
    for waited_s in poll(backoff):
        before = task.bytes_done
        try:
            task.run()
            return task.finish(checksum)
        except Transient as error:
            if task.bytes_done > before:
                progressed_at = waited_s
                backoff.reset()
            if waited_s - progressed_at >= retry_for_s:
                raise
            if on_retry is not None:
                on_retry(error)
    raise AssertionError("polled without a limit")


class _Download:
    def __init__(self, url: str, folder: Path, login: Login | None, progress: Progress, timeout: float) -> None:
        self._url, self._login, self._progress, self._timeout = url, login, progress, timeout
        self._name = file_name(url)
        self._path = folder / self._name
        self._part, self._validator_file = folder / f"{self._name}.part", folder / f"{self._name}.part.json"
        self._complete = self._path.is_file()

    @property
    def bytes_done(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0

    def run(self) -> None:
        """Run one connection to its end. Raises Transient if it broke before the file was complete."""
        if self._complete:
            return
        mark = self._validator()
        start = self.bytes_done if mark else 0
        headers = {} if self._login is None else {"Authorization": self._login.header}
        if start:
            headers |= {"Range": f"bytes={start}-", "If-Range": mark}
        client = http.Client(timeout_s=self._timeout)
        try:
            with client.stream(self._url, headers=headers, redirects=_MAX_REDIRECTS) as response:
                if response.status < 300:
                    self._receive(response, start)
                else:
                    self._handle_error(response, start)
        except http.ConnectionFailed as error:
            raise Transient(f"the connection broke: {error.reason}", where=self._url) from None
        except OSError as error:  # of the file: those of the network are ConnectionFailed
            if error.errno == errno.ENOSPC:
                raise DiskFull("no space left for the download", where=str(self._part)) from None
            raise StoreError(f"cannot write the download: {error.strerror}", where=str(self._part)) from None

    def _receive(self, response: http.Stream, start: int) -> None:
        continued = response.status == 206 and _range_start(response.headers.get("Content-Range", "")) == start
        if not continued:
            start = 0
            self._save_validator(response.headers)
        content_length = response.headers.get("Content-Length")
        total = start + int(content_length) if content_length is not None and content_length.isdigit() else 0
        with self._part.open("ab" if continued else "wb") as file:
            done = start
            while block := response.read(_BLOCK):
                file.write(block)
                done += len(block)
                self._progress(self._name, done, total)
        if total and done != total:
            raise Transient(f"only {done} of {total} bytes arrived", where=self._url)

    def _handle_error(self, response: http.Stream, start: int) -> None:
        status = response.status
        if status == 416 and start:  # nothing beyond our bytes: either complete, or another version
            if response.headers.get("Content-Range", "").rpartition("/")[2] == str(start):
                return
            self._part.unlink(missing_ok=True)
            raise Transient("the file on the server has changed since the download began", where=self._url)
        fix = ""
        if status in (401, 403, 407):
            fix = "give user and key as secret references (--user env:KAGGLE_USERNAME --key env:KAGGLE_KEY)"
        if status in (404, 410):
            raise NotThere("the server has no file at this address", where=self._url, fix="check the address")
        raise http.status_error(status, response.reason, where=self._url, fix=fix)

    def _validator(self) -> str:
        """Return the version tag of the partial download; empty if the server gave no strong one."""
        try:
            record = json.loads(self._validator_file.read_text())
            return str(record["mark"]) if record["url"] == self._url else ""
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def _save_validator(self, headers: Any) -> None:
        tag = headers.get("ETag", "")
        mark = tag if tag and not tag.startswith("W/") else headers.get("Last-Modified", "")
        self._validator_file.write_text(json.dumps({"url": self._url, "mark": mark}))

    def finish(self, checksum: str) -> Path:
        file = self._path if self._complete else self._part
        if checksum:
            kind, _, expected = checksum.partition(":")
            found = _hash(file, kind)
            if found != expected.lower():
                for path in (self._path, self._part, self._validator_file):
                    path.unlink(missing_ok=True)
                raise StoreError(
                    f"the file does not match its checksum: {kind} is {found}, not {expected}",
                    where=self._url,
                    fix="try again; if it fails again, the file at this address is not the expected one",
                )
        if not self._complete:
            os.replace(self._part, self._path)
            self._validator_file.unlink(missing_ok=True)
        return self._path


def _check_url(url: str, checksum: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(f"{url} is not an http(s) URL", fix="write https://host/path")
    if parts.password is not None:
        raise BadInput("a URL must not contain a password", fix="give user and key as secret references")
    if checksum and not re.fullmatch(r"(sha256:[0-9a-fA-F]{64}|md5:[0-9a-fA-F]{32})", checksum):
        raise BadInput(f"{checksum!r} is not a checksum", fix="write sha256: and 64 hex digits")


def file_name(url: str) -> str:
    """Return the last part of the path, sanitized. It must not depend on server headers."""
    name = unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2])
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")
    return safe[-120:] or "download"


def _range_start(content_range: str) -> int | None:
    match = re.match(r"bytes (\d+)-", content_range)
    return int(match[1]) if match else None


def _hash(path: Path, kind: str) -> str:
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(4 << 20):
            digest.update(block)
    return digest.hexdigest()


def _no_progress(name: str, done: int, total: int) -> None:
    pass
