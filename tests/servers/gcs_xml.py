"""The XML API of the strict GCS server: what obstore speaks."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from email.utils import formatdate
from xml.sax.saxutils import escape

from tests.servers.gcs_state import (
    SMALLEST_PART,
    Blob,
    Objects,
    Refusal,
    Upload,
    object_name,
    only_known,
    span_of,
)
from tests.servers.loopback import Answer, Request

_HEADERS = {"x-goog-if-generation-match", "x-goog-api-client", "x-goog-user-project"}
_LIST = {"list-type", "prefix", "delimiter", "start-after", "continuation-token", "max-keys"}


def serve(objects: Objects, request: Request) -> Answer:
    special = {name for name in request.headers if name.startswith("x-goog-") and not name.startswith("x-goog-meta-")}
    only_known(special, _HEADERS, "header")
    bucket, key = object_name(request.path)
    if not key:
        if request.method != "GET":
            raise Refusal(501, "NotImplemented", f"this server does not {request.method} buckets")
        return _list(objects, request, bucket)
    if "uploads" in request.query or "uploadId" in request.query:
        return _multipart(objects, request, bucket, key)
    only_known(request.query, {"generation"}, "parameter")
    if request.method in ("GET", "HEAD"):
        return _get(objects, request, bucket, key)
    if request.method == "PUT":
        return _put(objects, request, bucket, key)
    if request.method == "DELETE":
        objects.allow("delete")
        objects.remove(bucket, key, _wanted_generation(request))
        return Answer(status=204)
    raise Refusal(501, "NotImplemented", f"this server does not {request.method} objects")


def refused(refusal: Refusal) -> Answer:
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{refusal.code}</Code>"
    body += f"<Message>{escape(refusal.message)}</Message></Error>"
    return Answer(status=refusal.status, headers={"Content-Type": "application/xml"}, body=body.encode())


def _get(objects: Objects, request: Request, bucket: str, key: str) -> Answer:
    objects.allow("read")
    with objects.lock:
        blob = objects.blob(bucket, key)
    objects.require_generation(blob, _wanted_generation(request))
    if "generation" in request.query and request.query["generation"] != str(blob.generation):
        raise Refusal(404, "NoSuchKey", "The specified key does not exist.")
    if request.headers.get("if-match", blob.xml_etag) not in (blob.xml_etag, "*"):
        raise Refusal(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold.")
    if request.headers.get("if-none-match") in (blob.xml_etag, "*"):
        return Answer(status=304, headers=_about(blob))
    span = span_of(request.headers.get("range", ""), len(blob.content))
    headers = {**_about(blob), "Accept-Ranges": "bytes"}
    if span is None:
        return Answer(headers=headers, body=blob.content)
    start, stop = span
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(blob.content)}"
    return Answer(status=206, headers=headers, body=blob.content[start:stop])


def _put(objects: Objects, request: Request, bucket: str, key: str) -> Answer:
    objects.allow("write")
    _check_md5(request)
    blob = objects.store(bucket, key, request.body, _described(request, bucket, key))
    return Answer(headers=_about(blob))


def _list(objects: Objects, request: Request, bucket: str) -> Answer:
    only_known(request.query, _LIST, "parameter")
    objects.allow("list")
    if request.query.get("list-type") != "2":
        raise Refusal(501, "NotImplemented", "this server lists with list-type=2 only")
    token = request.query.get("continuation-token", "")
    after = base64.urlsafe_b64decode(token).decode() if token else request.query.get("start-after", "")
    found, folders, more = objects.page_of(
        bucket,
        prefix=request.query.get("prefix", ""),
        delimiter=request.query.get("delimiter", ""),
        after=after,
        at_most=int(request.query.get("max-keys", "1000")),
    )
    parts = [_contents(key, blob) for key, blob in found]
    parts += [f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders]
    if more:
        following = base64.urlsafe_b64encode(more.encode()).decode()
        parts.append(f"<NextContinuationToken>{following}</NextContinuationToken>")
    head = f"<Name>{escape(bucket)}</Name><IsTruncated>{'true' if more else 'false'}</IsTruncated>"
    return _xml("ListBucketResult", head + "".join(parts))


def _contents(key: str, blob: Blob) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(blob.written))
    return (
        f"<Contents><Key>{escape(key)}</Key><Generation>{blob.generation}</Generation>"
        f"<LastModified>{moment}</LastModified><ETag>{escape(blob.xml_etag)}</ETag>"
        f"<Size>{len(blob.content)}</Size></Contents>"
    )


def _multipart(objects: Objects, request: Request, bucket: str, key: str) -> Answer:
    only_known(request.query, {"uploads", "uploadId", "partNumber"}, "parameter")
    objects.allow("write")
    objects.bucket(bucket)
    if request.method == "POST" and "uploads" in request.query:
        name = f"upload-{objects.next_number()}"
        objects.uploads[name] = _described(request, bucket, key)
        return _xml(
            "InitiateMultipartUploadResult",
            f"<Bucket>{escape(bucket)}</Bucket><Key>{escape(key)}</Key><UploadId>{name}</UploadId>",
        )
    name = request.query.get("uploadId", "")
    upload = objects.uploads.get(name)
    if upload is None or (upload.bucket, upload.key) != (bucket, key):
        raise Refusal(404, "NoSuchUpload", "The requested upload was not found.")
    if request.method == "PUT":
        _check_md5(request)
        upload.parts[int(request.query["partNumber"])] = request.body
        return Answer(headers={"ETag": _part_etag(request.body)})
    if request.method == "DELETE":
        del objects.uploads[name]
        return Answer(status=204)
    if request.method == "POST":
        return _complete(objects, request, name)
    raise Refusal(501, "NotImplemented", f"this server does not {request.method} uploads")


def _complete(objects: Objects, request: Request, name: str) -> Answer:
    upload = objects.uploads[name]
    listed = re.findall(r"<Part>(.*?)</Part>", request.body.decode(), re.DOTALL)
    numbers = []
    for part in listed:
        number = int(_element(part, "PartNumber"))
        if _element(part, "ETag") != _part_etag(upload.parts.get(number, b"")) or number not in upload.parts:
            raise Refusal(400, "InvalidPart", "One or more of the specified parts could not be found.")
        numbers.append(number)
    if not numbers or numbers != sorted(set(numbers)):
        raise Refusal(400, "InvalidPartOrder", "The list of parts was not in ascending order.")
    if any(len(upload.parts[number]) < SMALLEST_PART for number in numbers[:-1]):
        raise Refusal(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum allowed object size.")
    content = b"".join(upload.parts[number] for number in numbers)
    blob = objects.store(upload.bucket, upload.key, content, upload)
    del objects.uploads[name]
    body = (
        f"<Bucket>{escape(upload.bucket)}</Bucket><Key>{escape(upload.key)}</Key><ETag>{escape(blob.xml_etag)}</ETag>"
    )
    answer = _xml("CompleteMultipartUploadResult", body)
    answer.headers["x-goog-generation"] = str(blob.generation)
    return answer


def _described(request: Request, bucket: str, key: str) -> Upload:
    prefix = "x-goog-meta-"
    return Upload(
        bucket,
        key,
        request.headers.get("content-type", "application/octet-stream"),
        {name[len(prefix) :]: value for name, value in request.headers.items() if name.startswith(prefix)},
        _wanted_generation(request),
    )


def _wanted_generation(request: Request) -> int | None:
    value = request.headers.get("x-goog-if-generation-match")
    return None if value is None else int(value)


def _about(blob: Blob) -> dict[str, str]:
    headers = {
        "ETag": blob.xml_etag,
        "Content-Type": blob.content_type,
        "Last-Modified": formatdate(blob.written, usegmt=True),
        "x-goog-generation": str(blob.generation),
        "x-goog-metageneration": "1",
        "x-goog-stored-content-length": str(len(blob.content)),
    }
    headers.update({f"x-goog-meta-{name}": value for name, value in blob.metadata.items()})
    if checksum := blob.crc32c:
        headers["x-goog-hash"] = f"crc32c={checksum}"
    return headers


def _check_md5(request: Request) -> None:
    claimed = request.headers.get("content-md5")
    if claimed and claimed != base64.b64encode(_digest(request.body)).decode():
        raise Refusal(400, "BadDigest", "The Content-MD5 you specified did not match what we received.")


def _digest(content: bytes) -> bytes:
    return hashlib.md5(content).digest()


def _part_etag(content: bytes) -> str:
    return f'"{_digest(content).hex()}"'


def _element(xml: str, name: str) -> str:
    found = re.search(rf"<{name}>(.*?)</{name}>", xml, re.DOTALL)
    return found[1].replace("&quot;", '"') if found else ""


def _xml(root: str, body: str) -> Answer:
    text = (
        f"<?xml version='1.0' encoding='UTF-8'?><{root} xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>{body}</{root}>"
    )
    return Answer(headers={"Content-Type": "application/xml; charset=UTF-8"}, body=text.encode())
