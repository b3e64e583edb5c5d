"""gs://, s3:// and az:// by obstore: one request for most verbs, parts side by side for what is large.

- Single requests are made without obstore's retries and repeated here, because a repeated conditional write needs
  care: the first may have arrived although its answer was lost. Each carries a stamp, so that we know our own again.
- Versions are ETags without their quotes, since listings give nothing else on every cloud. GCS compares
  generations: the object is looked up first, and the write made conditional on the generation that had the ETag.
- obstore's threads do not survive a fork: a child that goes on with the parent's would hang, so it is refused.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from headway.errors import Conflict, NoBucket, NotThere, StoreError, Transient
from headway.storage.base import ABSENT, Entry
from headway.storage.bodies import Body, as_view, size_of, whole
from headway.storage.cloud import Cloud
from headway.storage.keys import checked_key, checked_prefix, checked_span, in_key_order
from headway.storage.patience import Patience, keep_trying
from headway.storage.trouble import PastTheEnd, PerhapsNoBucket, bad_configuration, no_bucket, translated

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

    def __init__(self, cloud: Cloud, patience: Patience | None = None) -> None:
        self.url = cloud.url
        self._cloud = cloud
        self._patience = patience or Patience()
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
