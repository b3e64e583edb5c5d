"""What a cloud's refusal means. obstore tells the status and the answer's text; here they become our errors.

The order of the questions matters: a missing bucket may come as a failed condition (S3), and a refused one as
"not found" to a HEAD request, which has no text at all; the caller settles that last case.
"""

from __future__ import annotations

import re

from headway.errors import (
    BadInput,
    Conflict,
    Denied,
    DiskFull,
    NoBucket,
    NotThere,
    StoreError,
    Transient,
)
from headway.storage.cloud import Cloud

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
