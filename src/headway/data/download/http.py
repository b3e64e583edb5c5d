"""HTTP downloads: resumable, verified by hash, with credentials sent only to their own host.

The file appears under its name only when it is complete. A partial file is stored beside it with the server's ETag or
Last-Modified date: if the file has changed since, the download starts over and never mixes versions.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from headway._version import __version__
from headway.core.errors import BadInput, Denied, DiskFull, NotThere, StoreError, Transient

Progress = Callable[[str, int, int], None]  # file name, bytes done, total bytes (0: unknown)

_BLOCK = 1 << 20
_RETRYABLE = (408, 425, 429, 500, 502, 503, 504)
_CONNECTION_ERRORS = (OSError, http.client.HTTPException)


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """User and key as values, resolved from references by the caller and never printed."""

    user: str
    key: str

    def __repr__(self) -> str:
        return "Login(…)"

    @property
    def header(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.key}".encode()).decode()


def download(
    url: str,
    folder: Path,
    *,
    checksum: str = "",
    login: Login | None = None,
    progress: Progress | None = None,
    retry_for_s: float = 600.0,
    timeout: float = 60.0,
) -> Path:
    """Download `url` into `folder`. `checksum` is `sha256:…` or `md5:…`, or the URL ends in `#sha256=…`.

    Resumes broken connections; raises Transient after `retry_for_s` seconds without a byte.
    """
    address, _, fragment = url.partition("#")
    checksum = checksum or fragment.replace("=", ":", 1)
    _check_url(address, checksum)
    folder.mkdir(parents=True, exist_ok=True)
    task = _Download(address, folder, login, progress or _no_progress, timeout)
    last = time.monotonic()
    pause = 0.5
    while True:
        before = task.bytes_done
        try:
            return task.finish(checksum) if task.run() else _unreachable()
        except Transient:
            now = time.monotonic()
            if task.bytes_done > before:
                last, pause = now, 0.5
            if now - last > retry_for_s:
                raise
            time.sleep(min(pause, max(0.0, retry_for_s - (now - last))))
            pause = min(pause * 2, 30.0)


def _unreachable() -> Path:
    raise AssertionError("a run ends whole, or with an error")


class _Download:
    def __init__(self, url: str, folder: Path, login: Login | None, progress: Progress, timeout: float) -> None:
        self._url, self._login, self._progress, self._timeout = url, login, progress, timeout
        self._name = _file_name(url)
        self._path = folder / self._name
        self._part, self._validator_file = folder / f"{self._name}.part", folder / f"{self._name}.part.json"
        self._complete = self._path.is_file()

    @property
    def bytes_done(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0

    def run(self) -> bool:
        """Run one connection to its end. Returns True when the file is complete; raises Transient if it broke."""
        if self._complete:
            return True
        mark = self._validator()
        start = self.bytes_done if mark else 0
        request = urllib.request.Request(self._url, headers={"User-Agent": f"headway/{__version__}"})
        if self._login is not None:
            request.add_unredirected_header("Authorization", self._login.header)
        if start:
            request.add_header("Range", f"bytes={start}-")
            request.add_header("If-Range", mark)
        try:
            with _opener().open(request, timeout=self._timeout) as response:
                self._receive(response, start)
        except urllib.error.HTTPError as error:
            with error:
                self._handle_http_error(error, start)
        except _CONNECTION_ERRORS as error:
            if isinstance(error, OSError) and error.errno == 28:
                raise DiskFull("no space left for the download", where=str(self._part)) from None
            raise Transient(f"the connection broke: {_error_text(error)}", where=self._url) from None
        return True

    def _receive(self, response: Any, start: int) -> None:
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

    def _handle_http_error(self, error: urllib.error.HTTPError, start: int) -> None:
        if error.code == 416 and start:  # nothing beyond our bytes: either complete, or another version
            if error.headers.get("Content-Range", "").rpartition("/")[2] == str(start):
                return
            self._part.unlink(missing_ok=True)
            raise Transient("what had arrived does not belong to this file any more", where=self._url) from None
        if error.code in _RETRYABLE:
            raise Transient(f"the server answered {error.code}", where=self._url) from None
        if error.code in (401, 403, 407):
            fix = "give user and key as secret references (--user env:KAGGLE_USERNAME --key env:KAGGLE_KEY)"
            raise Denied(f"the server answered {error.code}", where=self._url, fix=fix) from None
        if error.code in (404, 410):
            raise NotThere("there is nothing at this address", where=self._url, fix="check the address") from None
        raise StoreError(f"the server answered {error.code} {error.reason}", where=self._url) from None

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
                    fix="try again; if it stays so, the file at this address is another one than expected",
                )
        if not self._complete:
            os.replace(self._part, self._path)
            self._validator_file.unlink(missing_ok=True)
        return self._path


class _SameHostRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects over http(s) only, never from https to http."""

    max_redirections = 10

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme not in ("http", "https") or (old.scheme == "https" and new.scheme == "http"):
            raise StoreError(f"the server redirects to {new.scheme}://, which is not followed", where=req.full_url)
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        same_host = (old.scheme, old.netloc) == (new.scheme, new.netloc)
        login = req.unredirected_hdrs.get("Authorization")
        if request is not None and same_host and login:
            request.add_unredirected_header("Authorization", login)
        return request


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_SameHostRedirects)


def _check_url(url: str, checksum: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(f"{url} is no web address", fix="write https://host/path")
    if parts.password is not None:
        raise BadInput("an address must not hold a password", fix="give user and key as secret references")
    if checksum and not re.fullmatch(r"(sha256:[0-9a-fA-F]{64}|md5:[0-9a-fA-F]{32})", checksum):
        raise BadInput(f"{checksum!r} is no checksum", fix="write sha256: and 64 hex digits")


def _file_name(url: str) -> str:
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


def _error_text(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _no_progress(name: str, done: int, total: int) -> None:
    pass
