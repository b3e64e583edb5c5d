"""gs://, s3:// and az:// through obstore: one request for most methods, parallel parts for large objects.

- Single requests are made without obstore's retries and retried here, because retrying a conditional write needs
  care: the first may have succeeded although its response was lost. Each carries a stamp by which we know our own.
- Versions are ETags without their quotes, since listings give nothing else on every cloud. GCS compares
  generations: the object is looked up first, and the write is made conditional on the generation that had the ETag.
- obstore's threads do not survive a fork: a child that used the parent's would hang,
  so using a store in a forked process raises an error.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from headway.core.errors import BadInput, Conflict, Denied, DiskFull, NoBucket, NotThere, StoreError, Transient
from headway.core.retry import RetryPolicy, retry
from headway.storage.base import ABSENT, ObjectInfo, checked_key, checked_prefix, checked_span, sort_key
from headway.storage.credentials import Credentials
from headway.storage.transfer import Body, as_view, body_size, read_body

# The common interface of the three clouds: connecting, credentials, and the commands to log in, create and grant


class Cloud(Protocol):
    """One bucket (or container) of one cloud, and a folder in it."""

    url: str
    bucket: str
    updates_by_generation: bool  # GCS compares a number that listings do not include; the others compare the ETag

    def connect(self, options: ConnectOptions) -> Any:
        """Return an obstore client."""

    def credential_error(self) -> StoreError | None:
        """Return why no credentials could be fetched, if that is what failed last."""

    def login_command(self) -> str: ...

    def create_command(self) -> str: ...

    def grant_command(self) -> str: ...


def split_bucket(url: str, example: str) -> tuple[str, str]:
    """scheme://bucket/some/folder → bucket, some/folder."""
    bucket, _, folder = url.partition("://")[2].partition("/")
    if not bucket:
        raise BadInput(f"{url} names no bucket", fix=f"write it as {example}")
    return bucket, folder.strip("/")


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectOptions:
    """How a client makes requests. `retries`: of the parts of large uploads; the store retries single requests."""

    retry: RetryPolicy
    retries: int
    request_s: float

    def keywords(self, cloud: CloudFolder, config: Mapping[str, Any], endpoint: str | None) -> dict[str, Any]:
        """Return the keyword arguments of obstore's clients that are the same on every cloud."""
        return {
            "prefix": cloud.folder or None,
            "config": config,
            "client_options": {
                "allow_http": bool(endpoint and endpoint.startswith("http://")),
                "connect_timeout": timedelta(seconds=self.retry.connect_s),
                "timeout": timedelta(seconds=self.request_s),
            },
            "retry_config": {
                "max_retries": self.retries,
                "retry_timeout": timedelta(seconds=self.retry.total_s),
                "backoff": {
                    "init_backoff": timedelta(seconds=self.retry.first_pause_s),
                    "max_backoff": timedelta(seconds=self.retry.longest_pause_s),
                    "base": 2,
                },
            },
            "credential_provider": cloud.credentials,
        }


@dataclass(kw_only=True, slots=True)
class CloudFolder:
    """The parts of a `Cloud` that are the same for all of them."""

    url: str
    bucket: str
    folder: str
    endpoint: str | None
    credentials: Credentials | None = None

    def credential_error(self) -> StoreError | None:
        return self.credentials.error if self.credentials else None


# Error mapping: obstore gives the HTTP status and the response's text

_STATUS = re.compile(r"(?:status code: |\(code: )(\d{3})")
_CODE = re.compile(r"<Code>(.*?)</Code>", re.DOTALL)
_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)
_SENTENCE = re.compile(r": ([^:]*) \(code: \d{3}\)$")  # how obstore reports failures of an Azure batch
_RANGE_PAST_END = re.compile(r"Wanted range starting at \d+, but object was|CONTENT_RANGE header: \"bytes \d+--1/")

# Matched by the response's error code; by its message only if it has none. Never by the whole text: it names the key.
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "The specified container does not exist."}
_RETRYABLE = {
    "ConditionalRequestConflict",
    "ContainerBeingDeleted",
    "OperationAborted",
    "RequestTimeout",
    "ServerBusy",
    "SlowDown",
}
_LOCKED = {"BlobImmutableDueToPolicy", "LeaseIdMissing"}  # Azure answers 409, as for an object that exists already
_BAD_LOGIN = {
    "AuthenticationFailed",
    "AuthenticationRequired",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidAuthenticationInfo",
    "InvalidToken",
    "NoAuthenticationInformation",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
_CLOCK = "RequestTimeTooSkewed"
_REGION = {"AuthorizationHeaderMalformed", "PermanentRedirect"}


class RangePastEnd(StoreError):
    """A range that starts at or past the object's end. Clouds refuse it; we return no bytes."""


class AmbiguousNotFound(NotThere):
    """A 404 without an error code, as for HEAD requests: either the object or the whole bucket is missing."""


def map_error(error: Exception, cloud: Cloud, operation: str) -> StoreError:
    """Map an obstore error to ours. `operation` names the operation: "write lease.json".

    The order of the checks matters: a missing bucket may look like a failed condition (S3), and a denied one like "not
    found" to a HEAD request, whose response has no text; the caller resolves that last case.
    """
    text = str(error).partition("\n\nDebug source")[0]
    status = int(found[1]) if (found := _STATUS.search(text)) else 0
    code, where = _code(text), cloud.url
    if status == 0 and (reason := cloud.credential_error()):
        return reason
    if code in _NO_BUCKET:
        return no_bucket(cloud)
    if code in _RETRYABLE or status in (408, 429) or (status >= 500 and status != 507):
        return Transient(f"cannot {operation}: {_server_message(text)}", where=where)
    if code in _LOCKED:
        return Denied(
            f"no permission to {operation}: {_server_message(text)}",
            where=where,
            fix="remove the lease or the retention policy",
        )
    if _error_name(error) in ("AlreadyExistsError", "PreconditionError"):  # also where S3 has no object to update
        return Conflict(f"cannot {operation}: another writer wrote it first", where=where)
    if status == 404 or isinstance(error, FileNotFoundError):
        kind = NotThere if code else AmbiguousNotFound
        return kind(f"cannot {operation}: it does not exist", where=where)
    if status == 416 or _RANGE_PAST_END.search(text):
        return RangePastEnd(f"cannot {operation}: the object ends before that", where=where)
    if status in (401, 403) or code in _BAD_LOGIN or _error_name(error) == "UnauthenticatedError":
        return _denied(text, status, cloud, operation)
    if status == 507:
        return DiskFull(f"cannot {operation}: the store has no space left", where=where)
    if code in _REGION or "incorrectly configured region" in text:
        fix = f'export AWS_REGION="$(aws s3api get-bucket-location --bucket {cloud.bucket} --output text)"'
        return StoreError(f"cannot {operation}: the bucket is in another region", where=where, fix=fix)
    if status == 0 and _error_name(error) == "GenericError":
        return Transient(f"cannot {operation}: {_server_message(text)}", where=where)
    return StoreError(f"cannot {operation}: {_server_message(text)}", where=where)


def no_bucket(cloud: Cloud) -> NoBucket:
    return NoBucket(f"there is no bucket {cloud.bucket}", where=cloud.url, fix=cloud.create_command())


def bad_configuration(error: Exception, cloud: Cloud) -> BadInput:
    """Map an obstore error about settings, raised before any request was made."""
    text = str(error).partition("\n\nDebug source")[0]
    return BadInput(f"this store cannot be opened: {_server_message(text)}", where=cloud.url, fix=cloud.login_command())


def _denied(text: str, status: int, cloud: Cloud, operation: str) -> Denied:
    code = _code(text)
    if code == _CLOCK:
        fix = "set this machine's clock (timedatectl set-ntp true)"
    elif status in (0, 401) or code in _BAD_LOGIN:
        fix = cloud.login_command()
    else:
        fix = cloud.grant_command()
    return Denied(f"no permission to {operation}: {_server_message(text)}", where=cloud.url, fix=fix)


def _error_name(error: Exception) -> str:
    return type(error).__name__


def _code(text: str) -> str:
    if found := _CODE.search(text):
        return found[1]
    return found[1] if (found := _SENTENCE.search(text)) else ""


def _server_message(text: str) -> str:
    """Extract the server's message, without the markup around it."""
    if code := _CODE.search(text):
        message = _MESSAGE.search(text)
        detail = " ".join((message[1] if message else "").split())
        return f"{code[1]}: {detail}" if detail else code[1]
    reason = " ".join(text.split())
    tail = reason.rpartition(" - ")[2]
    return tail if len(tail) <= 300 else tail[:300] + "…"


Result = TypeVar("Result")

_PART_BYTES = 8 << 20  # bytes of one part of a large transfer
_PARALLEL_PARTS = 4
_MAX_PARTS = 9_000  # S3 and GCS allow 10,000
_MIN_BYTES_PER_S = 256 << 10  # bytes per second: the slowest transfer that does not time out
_MAX_PUT_BYTES = 5 << 30  # S3's limit for one request
_STAMP = "headwaywrite"  # metadata key of conditional writes; Azure requires a plain identifier

_threads_pid = 0  # pid of the process in which obstore's threads were started


class ObjectStore:
    """A folder of a bucket. Opening it costs nothing; the first request fetches credentials."""

    def __init__(self, cloud: Cloud, retry: RetryPolicy | None = None) -> None:
        self.url = cloud.url
        self._cloud = cloud
        self._retry = retry or RetryPolicy()
        self._bucket_exists = False
        self._cached_client = lru_cache(maxsize=4)(self._connect)

    def read(self, key: str, span: tuple[int, int] | None = None) -> bytes:
        checked_key(key)
        if span is None:
            return self._with_retries(f"read {key}", lambda: self._read_whole(key))
        start, stop = checked_span(span)
        if start == stop:
            self.stat(key)
            return b""
        return self._with_retries(f"read {key}", lambda: self._read_span(key, start, stop))

    def write(self, key: str, body: Body, *, when: str | None = None) -> str:
        checked_key(key)
        size = body_size(body)
        if when is not None:
            return self._write_conditional(key, body, size, when)
        if size > _PART_BYTES:
            return self._write_parts(key, body, size)
        content = read_body(body) if isinstance(body, Path) else as_view(body)
        return self._with_retries(f"write {key}", lambda: self._put(key, content, "overwrite"), needs_only_bucket=True)

    def stat(self, key: str) -> ObjectInfo:
        import obstore

        checked_key(key)
        meta = self._with_retries(f"look up {key}", lambda: obstore.head(self._plain_client(), key))
        return ObjectInfo(key, meta["size"], _version(meta))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        import obstore

        folder = checked_prefix(prefix).rpartition("/")[0]

        def collect() -> list[ObjectInfo]:
            found = obstore.list(self._plain_client(), folder or None).collect()
            return [ObjectInfo(meta["path"], meta["size"], _version(meta)) for meta in found]

        entries = self._with_retries(f"list {prefix or 'the bucket'}", collect, needs_only_bucket=True)
        # Do not rely on a sorted listing: S3's directory buckets are not sorted.
        yield from sorted((e for e in entries if e.key.startswith(prefix)), key=lambda e: sort_key(e.key))

    def delete(self, key: str) -> None:
        import obstore

        checked_key(key)
        try:
            self._with_retries(f"delete {key}", lambda: obstore.delete(self._plain_client(), key))
        except NotThere:
            return

    def folders(self, prefix: str = "") -> Iterator[str]:
        """Yield the names of the folders directly below `prefix`, without listing their contents."""
        import obstore

        folder = checked_prefix(prefix).rstrip("/")

        def collect() -> list[str]:
            found = obstore.list_with_delimiter(self._plain_client(), folder or None)["common_prefixes"]
            return [path.rstrip("/").rpartition("/")[2] for path in found]

        yield from sorted(
            self._with_retries(f"list {prefix or 'the bucket'}", collect, needs_only_bucket=True), key=sort_key
        )

    # Reading

    def _read_whole(self, key: str) -> bytes:
        """Read an object, the rest in parallel: the first part's response tells the size before its bytes arrive.

        One request is enough for most objects, and none is wasted.
        """
        try:
            found = self._start_read(key, 0, _PART_BYTES, None)
        except RangePastEnd:
            return self._read_span(key, 0, 1)  # an empty object has no first part
        size, e_tag = found.meta["size"], found.meta["e_tag"]
        return b"".join(
            self._read_parts(key, _PART_BYTES, size, e_tag, lambda: self._finish_read(key, found, 0, _PART_BYTES))
        )

    def _read_span(self, key: str, start: int, stop: int) -> bytes:
        if stop - start > 2 * _PART_BYTES:
            entry = self.stat(key)
            return b"".join(self._read_parts(key, start, min(stop, entry.size), f'"{entry.version}"'))
        try:
            return bytes(self._read_part(key, start, stop, None))
        except RangePastEnd:
            if start < self.stat(key).size:
                raise
            return b""

    def _read_part(self, key: str, start: int, stop: int, e_tag: str | None) -> memoryview:
        return self._finish_read(key, self._start_read(key, start, stop, e_tag), start, stop)

    def _start_read(self, key: str, start: int, stop: int, e_tag: str | None) -> Any:
        """Start a read: return the response's head with the object's size and ETag; the body is still arriving."""
        import obstore

        options: Any = {"range": (start, stop), "if_match": e_tag} if e_tag else {"range": (start, stop)}
        return self._map_errors(f"read {key}", lambda: obstore.get(self._plain_client(), key, options=options))

    def _finish_read(self, key: str, found: Any, start: int, stop: int) -> memoryview:
        content = self._map_errors(f"read {key}", lambda: memoryview(found.bytes()))
        expected = min(stop, found.meta["size"]) - start
        if len(content) != expected:
            raise Transient(f"only {len(content)} of {expected} bytes of {key} arrived", where=self.url)
        return content

    def _read_parts(
        self, key: str, start: int, stop: int, e_tag: str | None, first: Callable[[], memoryview] | None = None
    ) -> tuple[memoryview, ...]:
        """Read parts in parallel, all of one version. Raises Transient if the object is replaced in between.

        `first` returns the part before them, on this thread, once the others are under way.
        """
        from concurrent.futures import ThreadPoolExecutor

        def part(at: int) -> memoryview:
            return retry(lambda: self._read_part(key, at, min(at + _PART_BYTES, stop), e_tag), self._retry)

        if start >= stop:
            return (first(),) if first else ()
        pool = ThreadPoolExecutor(_PARALLEL_PARTS, thread_name_prefix="read")
        try:
            others = [pool.submit(part, at) for at in range(start, stop, _PART_BYTES)]
            return (*((first(),) if first else ()), *(other.result() for other in others))
        except Conflict as error:
            raise Transient(f"{key} was replaced during the read", where=self.url) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)  # after a failure, start no further part

    # Writing

    def _put(self, key: str, content: bytes | memoryview, mode: Any, stamp: str = "") -> str:
        import obstore

        attributes = {_STAMP: stamp} if stamp else None
        client = self._client(0, len(content))
        return _version(obstore.put(client, key, content, mode=mode, attributes=attributes, use_multipart=False))

    def _write_parts(self, key: str, body: Body, size: int) -> str:
        import obstore

        chunk = max(_PART_BYTES, -(-size // _MAX_PARTS))
        content = body if isinstance(body, Path) else as_view(body)

        def upload() -> None:
            client = self._client(self._retry.tries - 1, _PARALLEL_PARTS * chunk)
            obstore.put(client, key, content, chunk_size=chunk, max_concurrency=_PARALLEL_PARTS)

        try:
            self._map_errors(f"write {key}", upload)
        except NotThere as error:
            raise no_bucket(self._cloud) from error
        arrived = self.stat(key)
        if arrived.size != size:
            raise Transient(f"{arrived.size} of {size} bytes of {key} arrived", where=self.url)
        return arrived.version

    def _write_conditional(self, key: str, body: Body, size: int, when: str) -> str:
        """Write in one request: only a single put can be conditional."""
        if size > _MAX_PUT_BYTES:
            raise StoreError(f"{key} is too large for a conditional write: {size} bytes", where=self.url)
        content = read_body(body) if isinstance(body, Path) else as_view(body)
        stamp = uuid.uuid4().hex
        failed_before = False

        def attempt() -> str:
            nonlocal failed_before
            try:
                return self._map_errors(
                    f"write {key}", lambda: self._put(key, content, self._put_mode(key, when), stamp)
                )
            except Transient:
                failed_before = True
                raise
            except Conflict:
                if failed_before and (ours := self._version_if_ours(key, stamp)):
                    return ours
                raise

        return self._with_retries(f"write {key}", attempt, needs_only_bucket=True)

    def _put_mode(self, key: str, when: str) -> Any:
        import obstore

        if when == ABSENT:
            return "create"
        e_tag = f'"{when}"'
        if not self._cloud.updates_by_generation:
            return {"e_tag": e_tag}
        try:
            meta = self._map_errors(f"look up {key}", lambda: obstore.head(self._plain_client(), key))
        except NotThere:
            if self._bucket_missing():
                raise no_bucket(self._cloud) from None
            raise Conflict(f"cannot write {key}: another writer deleted it", where=self.url) from None
        if _version(meta) != when:
            raise Conflict(f"cannot write {key}: another writer wrote it first", where=self.url)
        return {"e_tag": e_tag, "version": str(meta["version"])}

    def _version_if_ours(self, key: str, stamp: str) -> str | None:
        """Return the object's version if it is our own write, whose response was lost; else None."""
        import obstore

        found = self._map_errors(f"read {key}", lambda: obstore.get(self._plain_client(), key))
        return _version(found.meta) if found.attributes.get(_STAMP) == stamp else None

    # Retries and error mapping

    def _with_retries(self, operation: str, call: Callable[[], Result], *, needs_only_bucket: bool = False) -> Result:
        """Retry and map errors. With `needs_only_bucket`, a 404 means that the bucket is missing."""
        try:
            result = retry(lambda: self._map_errors(operation, call), self._retry)
        except NotThere as error:
            if needs_only_bucket or (isinstance(error, AmbiguousNotFound) and self._bucket_missing()):
                raise no_bucket(self._cloud) from error
            raise
        self._bucket_exists = True
        return result

    def _map_errors(self, operation: str, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except _obstore_errors() as error:
            raise map_error(error, self._cloud, operation) from error

    def _bucket_missing(self) -> bool:
        """Resolve a HEAD request's ambiguous 404. Makes a request only until the bucket has been seen once."""
        import obstore

        if self._bucket_exists:
            return False
        try:
            self._map_errors("list the bucket", lambda: obstore.list_with_delimiter(self._plain_client()))
        except (NotThere, NoBucket):
            return True
        except StoreError:
            return False  # it cannot be listed: it exists, or we cannot know
        self._bucket_exists = True
        return False

    def _plain_client(self) -> Any:
        return self._client(0)

    def _client(self, retries: int, size: int = 0) -> Any:
        """Return a client whose timeout allows for `size` bytes, in whole minutes so that few clients are made."""
        _check_not_forked(self.url)
        minutes = size // _MIN_BYTES_PER_S // 60
        return self._cached_client(retries, self._retry.request_s + 60 * minutes)

    def _connect(self, retries: int, request_s: float) -> Any:
        try:
            return self._cloud.connect(ConnectOptions(retry=self._retry, retries=retries, request_s=request_s))
        except _obstore_errors() as error:
            raise bad_configuration(error, self._cloud) from error


@lru_cache(maxsize=1)
def _obstore_errors() -> tuple[type[Exception], ...]:
    """Return all exceptions that obstore raises, by its documentation. Any other is our own bug and propagates."""
    from obstore.exceptions import BaseError

    return (BaseError, OSError, ValueError, NotImplementedError)


def _version(meta: Any) -> str:
    """Return the ETag, which some listings give with quotes and some without."""
    return str(meta["e_tag"] or "none").strip('"')


def _check_not_forked(url: str) -> None:
    global _threads_pid
    if not _threads_pid:
        _threads_pid = os.getpid()
    elif _threads_pid != os.getpid():
        fix = 'start the process with multiprocessing.get_context("spawn")'
        raise StoreError("an object store cannot be used in a forked process, where it would hang", where=url, fix=fix)
