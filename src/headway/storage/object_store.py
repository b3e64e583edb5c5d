"""gs://, s3:// and az:// through obstore: one request for most methods, parallel parts for large objects.

- Single requests are made without obstore's retries and retried here, because retrying a conditional write needs
  care: the first may have succeeded although its response was lost. Each carries a stamp by which we know our own.
- Versions are ETags without their quotes, since listings give nothing else on every cloud. GCS compares
  generations: the object is looked up first, and the write is made conditional on the generation that had the ETag.
- obstore's threads do not survive a fork: a child that used the parent's would hang, so it is refused.
"""

from __future__ import annotations

import os
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeVar

from headway.core.errors import BadInput, Conflict, Denied, DiskFull, NoBucket, NotThere, StoreError, Transient
from headway.core.retry import RetryPolicy, keep_trying
from headway.storage.base import ABSENT, Entry, checked_key, checked_prefix, checked_span, in_key_order
from headway.storage.transfer import Body, as_view, size_of, whole

# The common interface of the three clouds: connecting, credentials, and the commands to log in, create and grant


class Cloud(Protocol):
    """One bucket (or container) of one cloud, and a folder in it."""

    url: str
    bucket: str
    updates_by_generation: bool  # GCS compares a number that listings do not include; the others compare the ETag

    def connect(self, patience: RetryPolicy, *, retries: int, request_s: float) -> Any:
        """Return an obstore client. `retries` is for parts of large uploads; single requests are retried here."""

    def credential_error(self) -> StoreError | None:
        """Return why no credentials could be fetched, if that is what failed last."""

    def login_command(self) -> str: ...

    def create_command(self) -> str: ...

    def grant_command(self) -> str: ...


class Credentials(ABC):
    """Credential provider: asks the cloud's own library whenever obstore needs a token, and remembers why it failed.

    Retries: the token server of a pod may answer only seconds after the pod has started.
    """

    def __init__(self, patience: RetryPolicy) -> None:
        self._patience = patience
        self._lock = Lock()
        self.error: StoreError | None = None
        self.account = ""  # the account's name, where the library tells it

    @abstractmethod
    def fetch(self) -> Mapping[str, Any]:
        """Fetch credentials in obstore's format. Raises Denied or Transient if there are none."""

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
    kind: Callable[[RetryPolicy], Credentials], patience: RetryPolicy, variables: tuple[str, ...]
) -> Credentials:
    """Return credentials shared by all stores of this process, so that a token is fetched once.

    `variables` are prefixes of the environment variables that select the credentials; other values get another set.
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


def client_options(patience: RetryPolicy, endpoint: str | None, request_s: float) -> dict[str, Any]:
    return {
        "allow_http": bool(endpoint and endpoint.startswith("http://")),
        "connect_timeout": timedelta(seconds=patience.connect_s),
        "timeout": timedelta(seconds=request_s),
    }


def retry_config(patience: RetryPolicy, retries: int) -> dict[str, Any]:
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
    """Return whether this machine is the vendor's: then a metadata server that does not answer yet is retried."""
    try:
        return vendor in Path("/sys/class/dmi/id/sys_vendor").read_text()
    except OSError:
        return False


def unreachable(what: str, error: Exception) -> Transient:
    return Transient(f"{what} cannot be reached: {error}")


# Error mapping: obstore gives the HTTP status and the response's text

_STATUS = re.compile(r"(?:status code: |\(code: )(\d{3})")
_CODE = re.compile(r"<Code>(.*?)</Code>", re.DOTALL)
_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)
_SENTENCE = re.compile(r": ([^:]*) \(code: \d{3}\)$")  # how obstore reports failures of an Azure batch
_PAST_THE_END = re.compile(r"Wanted range starting at \d+, but object was|CONTENT_RANGE header: \"bytes \d+--1/")

# Matched by the response's error code; by its message only if it has none. Never by the whole text: it names the key.
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "The specified container does not exist."}
_TRY_AGAIN = {
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


class PastTheEnd(StoreError):
    """A range that starts at or past the object's end. Clouds refuse it; we return no bytes."""


class PerhapsNoBucket(NotThere):
    """A 404 without an error code, as for HEAD requests: either the object or the whole bucket is missing."""


def translated(error: Exception, cloud: Cloud, doing: str) -> StoreError:
    """Map an obstore error to ours. `doing` names the operation: "write lease.json".

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
    if code in _TRY_AGAIN or status in (408, 429) or (status >= 500 and status != 507):
        return Transient(f"cannot {doing}: {_said(text)}", where=where)
    if code in _LOCKED:
        return Denied(f"may not {doing}: {_said(text)}", where=where, fix="remove the lease or the retention policy")
    if _kind(error) in ("AlreadyExistsError", "PreconditionError"):  # also where S3 has no object to update
        return Conflict(f"cannot {doing}: somebody else wrote it first", where=where)
    if status == 404 or isinstance(error, FileNotFoundError):
        kind = NotThere if code else PerhapsNoBucket
        return kind(f"cannot {doing}: it is not there", where=where)
    if status == 416 or _PAST_THE_END.search(text):
        return PastTheEnd(f"cannot {doing}: the object ends before that", where=where)
    if status in (401, 403) or code in _BAD_LOGIN or _kind(error) == "UnauthenticatedError":
        return _denied(text, status, cloud, doing)
    if status == 507:
        return DiskFull(f"cannot {doing}: the store has no space left", where=where)
    if code in _REGION or "incorrectly configured region" in text:
        fix = f'export AWS_REGION="$(aws s3api get-bucket-location --bucket {cloud.bucket} --output text)"'
        return StoreError(f"cannot {doing}: the bucket is in another region", where=where, fix=fix)
    if status == 0 and _kind(error) == "GenericError":
        return Transient(f"cannot {doing}: {_said(text)}", where=where)
    return StoreError(f"cannot {doing}: {_said(text)}", where=where)


def no_bucket(cloud: Cloud) -> NoBucket:
    return NoBucket(f"there is no bucket {cloud.bucket}", where=cloud.url, fix=cloud.create_command())


def bad_configuration(error: Exception, cloud: Cloud) -> BadInput:
    """Map an obstore error about settings, raised before any request was made."""
    text = str(error).partition("\n\nDebug source")[0]
    return BadInput(f"this store cannot be opened: {_said(text)}", where=cloud.url, fix=cloud.login_command())


def _denied(text: str, status: int, cloud: Cloud, doing: str) -> Denied:
    code = _code(text)
    if code == _CLOCK:
        fix = "set this machine's clock (timedatectl set-ntp true)"
    elif status in (0, 401) or code in _BAD_LOGIN:
        fix = cloud.login_command()
    else:
        fix = cloud.grant_command()
    return Denied(f"may not {doing}: {_said(text)}", where=cloud.url, fix=fix)


def _kind(error: Exception) -> str:
    return type(error).__name__


def _code(text: str) -> str:
    if found := _CODE.search(text):
        return found[1]
    return found[1] if (found := _SENTENCE.search(text)) else ""


def _said(text: str) -> str:
    """Extract the server's message, without the markup around it."""
    if code := _CODE.search(text):
        message = _MESSAGE.search(text)
        said = " ".join((message[1] if message else "").split())
        return f"{code[1]}: {said}" if said else code[1]
    reason = " ".join(text.split())
    tail = reason.rpartition(" - ")[2]
    return tail if len(tail) <= 300 else tail[:300] + "…"


Result = TypeVar("Result")

_SPAN = 8 << 20  # bytes of one part of a large transfer
_SIDE_BY_SIDE = 4
_MOST_PARTS = 9_000  # S3 and GCS allow 10,000
_SLOWEST = 256 << 10  # bytes per second: the slowest transfer that does not time out
_LARGEST_PUT = 5 << 30  # S3's limit for one request
_STAMP = "headwaywrite"  # metadata key of conditional writes; Azure requires a plain identifier

_threads_of = 0  # pid of the process in which obstore's threads were started


class ObjectStore:
    """A folder of a bucket. Opening it costs nothing; the first request fetches credentials."""

    def __init__(self, cloud: Cloud, patience: RetryPolicy | None = None) -> None:
        self.url = cloud.url
        self._cloud = cloud
        self._patience = patience or RetryPolicy()
        self._bucket_seen = False
        self._connected = lru_cache(maxsize=4)(self._connect)

    def read(self, key: str, span: tuple[int, int] | None = None) -> bytes:
        checked_key(key)
        if span is None:
            return self._try(f"read {key}", lambda: self._read_whole(key))
        start, stop = checked_span(span)
        if start == stop:
            self.stat(key)
            return b""
        return self._try(f"read {key}", lambda: self._read_span(key, start, stop))

    def write(self, key: str, body: Body, *, when: str | None = None) -> str:
        checked_key(key)
        size = size_of(body)
        if when is not None:
            return self._write_if(key, body, size, when)
        if size > _SPAN:
            return self._write_parts(key, body, size)
        content = whole(body) if isinstance(body, Path) else as_view(body)
        return self._try(f"write {key}", lambda: self._put(key, content, "overwrite"), of_bucket=True)

    def stat(self, key: str) -> Entry:
        import obstore

        checked_key(key)
        meta = self._try(f"look up {key}", lambda: obstore.head(self._single(), key))
        return Entry(key, meta["size"], _version(meta))

    def list(self, prefix: str = "") -> Iterator[Entry]:
        import obstore

        folder = checked_prefix(prefix).rpartition("/")[0]

        def collect() -> list[Entry]:
            found = obstore.list(self._single(), folder or None).collect()
            return [Entry(meta["path"], meta["size"], _version(meta)) for meta in found]

        entries = self._try(f"list {prefix or 'the bucket'}", collect, of_bucket=True)
        # Do not rely on a sorted listing: S3's directory buckets are not sorted.
        yield from sorted((e for e in entries if e.key.startswith(prefix)), key=lambda e: in_key_order(e.key))

    def delete(self, key: str) -> None:
        import obstore

        checked_key(key)
        try:
            self._try(f"delete {key}", lambda: obstore.delete(self._single(), key))
        except NotThere:
            return

    def folders(self, prefix: str = "") -> Iterator[str]:
        """Yield the names of the folders directly below `prefix`, without listing their contents."""
        import obstore

        folder = checked_prefix(prefix).rstrip("/")

        def collect() -> list[str]:
            found = obstore.list_with_delimiter(self._single(), folder or None)["common_prefixes"]
            return [path.rstrip("/").rpartition("/")[2] for path in found]

        yield from sorted(self._try(f"list {prefix or 'the bucket'}", collect, of_bucket=True), key=in_key_order)

    # Reading

    def _read_whole(self, key: str) -> bytes:
        """Read an object, the rest in parallel: the first part's response tells the size before its bytes arrive.

        One request is enough for most objects, and none is wasted.
        """
        try:
            found = self._ask(key, 0, _SPAN, None)
        except PastTheEnd:
            return self._read_span(key, 0, 1)  # an empty object has no first part
        size, e_tag = found.meta["size"], found.meta["e_tag"]
        return b"".join(self._read_parts(key, _SPAN, size, e_tag, lambda: self._arrived(key, found, 0, _SPAN)))

    def _read_span(self, key: str, start: int, stop: int) -> bytes:
        if stop - start > 2 * _SPAN:
            entry = self.stat(key)
            return b"".join(self._read_parts(key, start, min(stop, entry.size), f'"{entry.version}"'))
        try:
            return bytes(self._read_part(key, start, stop, None))
        except PastTheEnd:
            if start < self.stat(key).size:
                raise
            return b""

    def _read_part(self, key: str, start: int, stop: int, e_tag: str | None) -> memoryview:
        return self._arrived(key, self._ask(key, start, stop, e_tag), start, stop)

    def _ask(self, key: str, start: int, stop: int, e_tag: str | None) -> Any:
        """Start a read: return the response's head with the object's size and ETag; the body is still arriving."""
        import obstore

        options: Any = {"range": (start, stop), "if_match": e_tag} if e_tag else {"range": (start, stop)}
        return self._translate(f"read {key}", lambda: obstore.get(self._single(), key, options=options))

    def _arrived(self, key: str, found: Any, start: int, stop: int) -> memoryview:
        content = self._translate(f"read {key}", lambda: memoryview(found.bytes()))
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
            return keep_trying(lambda: self._read_part(key, at, min(at + _SPAN, stop), e_tag), self._patience)

        if start >= stop:
            return (first(),) if first else ()
        pool = ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="read")
        try:
            others = [pool.submit(part, at) for at in range(start, stop, _SPAN)]
            return (*((first(),) if first else ()), *(other.result() for other in others))
        except Conflict as error:
            raise Transient(f"{key} was replaced while it was read", where=self.url) from error
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

        chunk = max(_SPAN, -(-size // _MOST_PARTS))
        content = body if isinstance(body, Path) else as_view(body)

        def upload() -> None:
            client = self._client(self._patience.tries - 1, _SIDE_BY_SIDE * chunk)
            obstore.put(client, key, content, chunk_size=chunk, max_concurrency=_SIDE_BY_SIDE)

        try:
            self._translate(f"write {key}", upload)
        except NotThere as error:
            raise no_bucket(self._cloud) from error
        arrived = self.stat(key)
        if arrived.size != size:
            raise Transient(f"{arrived.size} of {size} bytes of {key} arrived", where=self.url)
        return arrived.version

    def _write_if(self, key: str, body: Body, size: int, when: str) -> str:
        """Write in one request: only a single put can be conditional."""
        if size > _LARGEST_PUT:
            raise StoreError(f"{key} is too large to be written on a condition: {size} bytes", where=self.url)
        content = whole(body) if isinstance(body, Path) else as_view(body)
        stamp = uuid.uuid4().hex
        failed_before = False

        def attempt() -> str:
            nonlocal failed_before
            try:
                return self._translate(f"write {key}", lambda: self._put(key, content, self._mode(key, when), stamp))
            except Transient:
                failed_before = True
                raise
            except Conflict:
                if failed_before and (ours := self._stamped(key, stamp)):
                    return ours
                raise

        return self._try(f"write {key}", attempt, of_bucket=True)

    def _mode(self, key: str, when: str) -> Any:
        import obstore

        if when == ABSENT:
            return "create"
        e_tag = f'"{when}"'
        if not self._cloud.updates_by_generation:
            return {"e_tag": e_tag}
        try:
            meta = self._translate(f"look up {key}", lambda: obstore.head(self._single(), key))
        except NotThere:
            if self._bucket_missing():
                raise no_bucket(self._cloud) from None
            raise Conflict(f"cannot write {key}: somebody else deleted it", where=self.url) from None
        if _version(meta) != when:
            raise Conflict(f"cannot write {key}: somebody else wrote it first", where=self.url)
        return {"e_tag": e_tag, "version": str(meta["version"])}

    def _stamped(self, key: str, stamp: str) -> str | None:
        """Return the object's version if it is our own write, whose response was lost; else None."""
        import obstore

        found = self._translate(f"read {key}", lambda: obstore.get(self._single(), key))
        return _version(found.meta) if found.attributes.get(_STAMP) == stamp else None

    # Retries and error mapping

    def _try(self, doing: str, call: Callable[[], Result], *, of_bucket: bool = False) -> Result:
        """Retry and map errors. `of_bucket`: the operation needs only the bucket, so a 404 means that it is missing."""
        try:
            result = keep_trying(lambda: self._translate(doing, call), self._patience)
        except NotThere as error:
            if of_bucket or (isinstance(error, PerhapsNoBucket) and self._bucket_missing()):
                raise no_bucket(self._cloud) from error
            raise
        self._bucket_seen = True
        return result

    def _translate(self, doing: str, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except _foreign_errors() as error:
            raise translated(error, self._cloud, doing) from error

    def _bucket_missing(self) -> bool:
        """Resolve a HEAD request's ambiguous 404. Makes a request only until the bucket has been seen once."""
        import obstore

        if self._bucket_seen:
            return False
        try:
            self._translate("list the bucket", lambda: obstore.list_with_delimiter(self._single()))
        except (NotThere, NoBucket):
            return True
        except StoreError:
            return False  # it cannot be listed: it exists, or we cannot know
        self._bucket_seen = True
        return False

    def _single(self) -> Any:
        return self._client(0)

    def _client(self, retries: int, size: int = 0) -> Any:
        """Return a client whose timeout allows for `size` bytes, in whole minutes so that few clients are made."""
        _refuse_after_fork(self.url)
        minutes = size // _SLOWEST // 60
        return self._connected(retries, self._patience.request_s + 60 * minutes)

    def _connect(self, retries: int, request_s: float) -> Any:
        try:
            return self._cloud.connect(self._patience, retries=retries, request_s=request_s)
        except _foreign_errors() as error:
            raise bad_configuration(error, self._cloud) from error


@lru_cache(maxsize=1)
def _foreign_errors() -> tuple[type[Exception], ...]:
    """Return all exceptions that obstore raises, by its documentation. Any other is our own bug and propagates."""
    from obstore.exceptions import BaseError

    return (BaseError, OSError, ValueError, NotImplementedError)


def _version(meta: Any) -> str:
    """Return the ETag, which some listings give with quotes and some without."""
    return str(meta["e_tag"] or "none").strip('"')


def _refuse_after_fork(url: str) -> None:
    global _threads_of
    if not _threads_of:
        _threads_of = os.getpid()
    elif _threads_of != os.getpid():
        fix = 'start the process with multiprocessing.get_context("spawn")'
        raise StoreError("an object store cannot be used in a forked process, where it would hang", where=url, fix=fix)
