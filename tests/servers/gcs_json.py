"""The JSON API of the strict GCS server: what google-cloud-storage and gcloud speak."""

from __future__ import annotations

import base64
import email
import email.policy
import json
import re
import time
from typing import Any
from urllib.parse import unquote

from tests.servers.gcs_state import Blob, Objects, Refusal, Upload, only_known, span_of
from tests.servers.loopback import Answer, Request

PATHS = ("/storage/v1/", "/upload/storage/v1/", "/download/storage/v1/")
_COMMON = {"alt", "fields", "prettyPrint", "projection", "ifGenerationMatch", "generation"}
_LIST = {"prefix", "delimiter", "maxResults", "pageToken", "startOffset"}
_BLOCK = 256 << 10  # resumable uploads come in multiples of this, but for the last


def serve(objects: Objects, request: Request) -> Answer:
    known = {"content-type", "content-length", "content-range", "range"}
    only_known((n for n in request.headers if n.startswith("x-goog-if")), known, "header")
    area, _, rest = request.path.lstrip("/").partition("storage/v1/b")
    if area == "upload/":
        return _upload(objects, request, unquote(rest.strip("/").partition("/")[0]))
    if not rest:
        return _make_bucket(objects, request)
    bucket, _, below = rest.strip("/").partition("/")
    bucket = unquote(bucket)
    if not below:
        return _bucket(objects, request, bucket)
    if below == "o":
        return _list(objects, request, bucket)
    if below.startswith("o/"):
        return _object(objects, request, bucket, unquote(below[2:]))
    raise Refusal(501, "notImplemented", f"this server does not know {request.path}")


def refused(refusal: Refusal) -> Answer:
    reasons = {401: "authError", 403: "forbidden", 404: "notFound", 412: "conditionNotMet", 501: "notImplemented"}
    detail = {"message": refusal.message, "domain": "global", "reason": reasons.get(refusal.status, "invalid")}
    error = {"error": {"code": refusal.status, "message": refusal.message, "errors": [detail]}}
    return _json(error, status=refusal.status)


def _make_bucket(objects: Objects, request: Request) -> Answer:
    if request.method != "POST":
        raise Refusal(501, "notImplemented", "this server does not list buckets")
    only_known(request.query, _COMMON | {"project"}, "parameter")
    name = json.loads(request.body)["name"]
    if name in objects.buckets:
        raise Refusal(409, "conflict", "Your previous request to create the named bucket succeeded.")
    objects.buckets[name] = {}
    return _json({"kind": "storage#bucket", "id": name, "name": name})


def _bucket(objects: Objects, request: Request, name: str) -> Answer:
    only_known(request.query, _COMMON, "parameter")
    if request.method != "GET":
        raise Refusal(501, "notImplemented", f"this server does not {request.method} buckets")
    objects.bucket(name)
    return _json({"kind": "storage#bucket", "id": name, "name": name})


def _list(objects: Objects, request: Request, bucket: str) -> Answer:
    only_known(request.query, _COMMON | _LIST, "parameter")
    objects.allow("list")
    token = request.query.get("pageToken", "")
    found, folders, more = objects.page_of(
        bucket,
        prefix=request.query.get("prefix", ""),
        delimiter=request.query.get("delimiter", ""),
        after=base64.urlsafe_b64decode(token).decode() if token else "",
        at_most=int(request.query.get("maxResults", "1000")),
    )
    answer: dict[str, Any] = {"kind": "storage#objects", "items": [_resource(bucket, key, blob) for key, blob in found]}
    if folders:
        answer["prefixes"] = folders
    if more:
        answer["nextPageToken"] = base64.urlsafe_b64encode(more.encode()).decode()
    return _json(answer)


def _object(objects: Objects, request: Request, bucket: str, key: str) -> Answer:
    only_known(request.query, _COMMON, "parameter")
    wanted = _wanted_generation(request)
    if request.method == "DELETE":
        objects.allow("delete")
        objects.remove(bucket, key, wanted)
        return Answer(status=204)
    if request.method != "GET":
        raise Refusal(501, "notImplemented", f"this server does not {request.method} objects")
    objects.allow("read")
    with objects.lock:
        blob = objects.blob(bucket, key)
    objects.require_generation(blob, wanted)
    if request.query.get("generation", str(blob.generation)) != str(blob.generation):
        raise Refusal(404, "notFound", f"No such object: {bucket}/{key}")
    if request.query.get("alt") != "media":
        return _json(_resource(bucket, key, blob))
    return _media(request, blob)


def _media(request: Request, blob: Blob) -> Answer:
    headers = {
        "Content-Type": blob.content_type,
        "ETag": blob.json_etag,
        "x-goog-generation": str(blob.generation),
        "x-goog-metageneration": "1",
        "x-goog-hash": f"md5={base64.b64encode(blob.md5).decode()}",
    }
    if checksum := blob.crc32c:
        headers["x-goog-hash"] = f"crc32c={checksum},{headers['x-goog-hash']}"
    span = span_of(request.headers.get("range", ""), len(blob.content))
    if span is None:
        return Answer(headers=headers, body=blob.content)
    start, stop = span
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(blob.content)}"
    return Answer(status=206, headers=headers, body=blob.content[start:stop])


def _upload(objects: Objects, request: Request, bucket: str) -> Answer:
    only_known(request.query, _COMMON | {"uploadType", "upload_id", "name"}, "parameter")
    objects.allow("write")
    objects.bucket(bucket)
    if "upload_id" in request.query:
        return _continue(objects, request)
    kind = request.query.get("uploadType")
    if kind == "multipart":
        about, content = _related(request)
        upload = _described(request, bucket, about)
        return _json(_resource(bucket, upload.key, objects.store(bucket, upload.key, content, upload)))
    if kind == "resumable":
        about = json.loads(request.body or b"{}")
        name = f"session-{objects.next_number()}"
        objects.uploads[name] = _described(request, bucket, about)
        host = request.headers["host"]
        where = f"http://{host}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={name}"
        return Answer(headers={"Location": where})
    raise Refusal(501, "notImplemented", f"this server does not know the upload {kind}")


def _continue(objects: Objects, request: Request) -> Answer:
    """One piece of a resumable upload: `bytes 0-262143/*`, `bytes 262144-300000/300001`, or `bytes */N` to ask."""
    upload = objects.uploads.get(request.query["upload_id"])
    if upload is None:
        raise Refusal(404, "notFound", "No such upload.")
    found = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", request.headers.get("content-range", ""))
    if not found:
        raise Refusal(400, "invalid", "Failed to parse Content-Range header.")
    start, stop, total = found.groups()
    if start is not None:
        if int(start) != len(upload.received) or int(stop) - int(start) + 1 != len(request.body):
            raise Refusal(400, "invalid", "The piece does not follow the one before it.")
        upload.received += request.body
    if total != "*" and len(upload.received) == int(total):
        blob = upload.finished or objects.store(upload.bucket, upload.key, bytes(upload.received), upload)
        upload.finished = blob
        return _json(_resource(upload.bucket, upload.key, blob))
    if len(upload.received) % _BLOCK:
        raise Refusal(400, "invalid", f"The piece is not a multiple of {_BLOCK} bytes.")
    headers = {"Range": f"bytes=0-{len(upload.received) - 1}"} if upload.received else {}
    return Answer(status=308, headers=headers)


def _related(request: Request) -> tuple[dict[str, Any], bytes]:
    """The two parts of a multipart/related upload: a description and the bytes."""
    head = b"Content-Type: " + request.headers["content-type"].encode() + b"\r\n\r\n"
    message = email.message_from_bytes(head + request.body, policy=email.policy.HTTP)
    about, _ = message.iter_parts()
    # The bytes are cut out by hand: a mail parser would change the line ends in them.
    boundary = b"--" + str(message.get_boundary()).encode()
    piece = request.body.split(boundary, 2)[2].partition(b"\r\n\r\n")[2]
    return json.loads(about.get_content()), piece[: piece.rindex(b"\r\n" + boundary + b"--")]


def _described(request: Request, bucket: str, about: dict[str, Any]) -> Upload:
    allowed = {"name", "contentType", "metadata", "crc32c", "md5Hash"}
    only_known(about, allowed, "property")
    key = request.query.get("name") or about["name"]
    kind = about.get("contentType") or request.headers.get("x-upload-content-type") or "application/octet-stream"
    return Upload(bucket, key, kind, about.get("metadata") or {}, _wanted_generation(request))


def _wanted_generation(request: Request) -> int | None:
    value = request.query.get("ifGenerationMatch")
    return None if value is None else int(value)


def _resource(bucket: str, key: str, blob: Blob) -> dict[str, Any]:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(blob.written))
    described = {
        "kind": "storage#object",
        "id": f"{bucket}/{key}/{blob.generation}",
        "name": key,
        "bucket": bucket,
        "generation": str(blob.generation),
        "metageneration": "1",
        "contentType": blob.content_type,
        "size": str(len(blob.content)),
        "md5Hash": base64.b64encode(blob.md5).decode(),
        "etag": blob.json_etag,
        "timeCreated": moment,
        "updated": moment,
        "metadata": blob.metadata,
    }
    if checksum := blob.crc32c:
        described["crc32c"] = checksum
    return described


def _json(content: Any, status: int = 200) -> Answer:
    headers = {"Content-Type": "application/json; charset=UTF-8"}
    return Answer(status=status, headers=headers, body=json.dumps(content).encode())
