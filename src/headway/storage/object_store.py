"""gs://, s3:// and az:// by obstore: one request for most verbs, parts side by side for what is large.

- Single requests are made without obstore's retries and repeated here, because a repeated conditional write needs
  care: the first may have arrived although its answer was lost. Each carries a stamp, so that we know our own again.
- Versions are ETags without their quotes, since listings give nothing else on every cloud. GCS compares
  generations: the object is looked up first, and the write made conditional on the generation that had the ETag.
- obstore's threads do not survive a fork: a child that goes on with the parent's would hang, so it is refused.
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

# What the three clouds have in common, and where they differ in words: who may, how to log in, what to create.


class Cloud(Protocol):
    """One bucket (or container) of one cloud, and a folder in it."""

    url: str
    bucket: str
    updates_by_generation: bool  # GCS compares a number that listings do not tell; the others compare the ETag

    def connect(self, patience: RetryPolicy, *, retries: int, request_s: float) -> Any:
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

    def __init__(self, patience: RetryPolicy) -> None:
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
    kind: Callable[[RetryPolicy], Credentials], patience: RetryPolicy, variables: tuple[str, ...]
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
    """Is this machine the vendor's? Then a metadata server that does not answer yet is worth waiting for."""
    try:
        return vendor in Path("/sys/class/dmi/id/sys_vendor").read_text()
    except OSError:
        return False


def unreachable(what: str, error: Exception) -> Transient:
    return Transient(f"{what} cannot be reached: {error}")


# What a cloud's refusal means. obstore tells the status and the answer's text; here they become our errors.
#
# The order of the questions matters: a missing bucket may come as a failed condition (S3), and a refused one as "not
# found" to a HEAD request, which has no text at all; the caller settles that last case.


_STATUS = re.compile(r"(?:status code: |\(code: )(\d{3})")
_CODE = re.compile(r"<Code>(.*?)</Code>", re.DOTALL)
_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)
_SENTENCE = re.compile(r": ([^:]*) \(code: \d{3}\)$")  # how obstore tells the failures of an Azure batch
_PAST_THE_END = re.compile(r"Wanted range starting at \d+, but object was|CONTENT_RANGE header: \"bytes \d+--1/")

# By the code of the answer; the words only where the answer has none. Never by the whole text: that names the key.
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "The specified container does not exist."}
_TRY_AGAIN = {
    "ConditionalRequestConflict",
    "ContainerBeingDeleted",
    "OperationAborted",
    "RequestTimeout",
    "ServerBusy",
    "SlowDown",
}
_LOCKED = {"BlobImmutableDueToPolicy", "LeaseIdMissing"}  # Azure says 409, as for an object that is there already
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
    """A span that starts where the object ends or later. Clouds refuse it; for us it is an empty answer."""


class PerhapsNoBucket(NotThere):
    """A 404 without a word of explanation, as HEAD requests give: the object is missing, or all of the bucket."""


def translated(error: Exception, cloud: Cloud, doing: str) -> StoreError:
    """Our error for one of obstore's. `doing` names the attempt: "write lease.json"."""
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
    """What obstore says about settings, before any request was made."""
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
    """What the server said, without the markup around it."""
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
_MOST_PARTS = 9_000  # S3 and GCS take 10,000
_SLOWEST = 256 << 10  # bytes a second that we still wait for
_LARGEST_PUT = 5 << 30  # what S3 takes in one request
_STAMP = "headwaywrite"  # metadata of conditional writes; Azure wants a plain identifier

_threads_of = 0  # the process in which obstore's threads run, once they do


class ObjectStore:
    """A folder of a bucket. Opening it costs nothing; the first verb finds the credentials."""

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
        # A listing must not be trusted to be sorted: S3's directory buckets are not.
        yield from sorted((e for e in entries if e.key.startswith(prefix)), key=lambda e: in_key_order(e.key))

    def delete(self, key: str) -> None:
        import obstore

        checked_key(key)
        try:
            self._try(f"delete {key}", lambda: obstore.delete(self._single(), key))
        except NotThere:
            return

    def folders(self, prefix: str = "") -> Iterator[str]:
        """The names of the folders directly below `prefix`, without listing what lies in them."""
        import obstore

        folder = checked_prefix(prefix).rstrip("/")

        def collect() -> list[str]:
            found = obstore.list_with_delimiter(self._single(), folder or None)["common_prefixes"]
            return [path.rstrip("/").rpartition("/")[2] for path in found]

        yield from sorted(self._try(f"list {prefix or 'the bucket'}", collect, of_bucket=True), key=in_key_order)

    # ── reading ──────────────────────────────────────────────────────────────

    def _read_whole(self, key: str) -> bytes:
        """The first part tells the size: one request is enough for most objects, and none is made in vain.

        It does so before its bytes are here: what else there is, is asked for meanwhile.
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
        """The answer's head: the size of the whole object, and the ETag. Its bytes are still on their way."""
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
        """Large reads as parts side by side, all of one version; another version in between is tried again.

        `first` brings the part before them, on this thread, once the others are under way.
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

    # ── writing ──────────────────────────────────────────────────────────────

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
        """In one request, since only that can be conditional."""
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
        """The version of the object if it is the one we wrote: the answer to our request was lost, not the request."""
        import obstore

        found = self._translate(f"read {key}", lambda: obstore.get(self._single(), key))
        return _version(found.meta) if found.attributes.get(_STAMP) == stamp else None

    # ── trying, and what failures mean ───────────────────────────────────────

    def _try(self, doing: str, call: Callable[[], Result], *, of_bucket: bool = False) -> Result:
        """`of_bucket`: writing and listing need only the bucket, so what is not there can only be that."""
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
        """A HEAD request's 404 does not say what is missing. Asked at most until the bucket has been seen once."""
        import obstore

        if self._bucket_seen:
            return False
        try:
            self._translate("list the bucket", lambda: obstore.list_with_delimiter(self._single()))
        except (NotThere, NoBucket):
            return True
        except StoreError:
            return False  # it cannot be listed, so it is there, or we cannot know
        self._bucket_seen = True
        return False

    def _single(self) -> Any:
        return self._client(0)

    def _client(self, retries: int, size: int = 0) -> Any:
        """With time enough for a request of `size` bytes, in whole minutes so that few clients are made."""
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
    """All that obstore raises, by its documentation. Anything else is a mistake of ours and goes up as it is."""
    from obstore.exceptions import BaseError

    return (BaseError, OSError, ValueError, NotImplementedError)


def _version(meta: Any) -> str:
    """The ETag, which some listings give with quotes and some without."""
    return str(meta["e_tag"] or "none").strip('"')


def _refuse_after_fork(url: str) -> None:
    global _threads_of
    if not _threads_of:
        _threads_of = os.getpid()
    elif _threads_of != os.getpid():
        fix = 'start the process with multiprocessing.get_context("spawn")'
        raise StoreError("an object store cannot be used in a forked process, where it would hang", where=url, fix=fix)
