"""Data, stores and secrets."""

from __future__ import annotations

from headway.diagnose.diagnosis import FailureRule

KNOWN = (
    FailureRule(
        name="secret-not-found",
        pattern=r"there is no secret (?P<secret>\S+?)[,:]?(?: |$)|secrets? \"(?P<name>[^\"]+)\" not found"
        r"|couldn't find key (?P<key>\S+) in Secret|Secret \[projects/[^\]]+\] not found"
        r"|ResourceNotFoundException.*GetSecretValue",
        cause="a secret that the job names does not exist",
        fix="headway doctor   (names it, and the command that makes it)",
    ),
    FailureRule(
        name="secret-not-resolved",
        pattern=r"the variable (?P<variable>\w+) is not set|the secret's file cannot be read",
        cause="a secret of the job does not resolve where it trains",
        fix="headway doctor; secrets of env: must be exported in the shell that runs headway",
    ),
    FailureRule(
        name="bucket-not-found",
        pattern=r"The specified bucket does not exist|NoSuchBucket|bucket .* does not exist"
        r"|ContainerNotFound|The specified container does not exist",
        cause="the bucket does not exist",
        fix="gcloud storage buckets create gs://{bucket} --location={region}   (or mend the name in the job file)",
    ),
    FailureRule(
        name="data-not-prepared",
        pattern=r"is not a prepared data set|no manifest\.json",
        cause="the data is there, but has not been prepared",
        fix="headway data prepare SOURCE --to DEST, and name DEST in the job file",
    ),
    FailureRule(
        name="data-not-found",
        pattern=r"no such data: (?P<path>\S+)"
        r"|FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<file>[^']+)'"
        r"|NoSuchKey|No such object: (?P<object>\S+)|BlobNotFound",
        cause="a file or object that the training reads does not exist where it trains",
        fix="name it under `data` with a URL (it is brought there), or put it beside the job file (it is sent)",
    ),
    FailureRule(
        name="damaged-picture",
        pattern=r"cannot identify image file|image file is truncated|UnidentifiedImageError|broken data stream"
        r"|Corrupt JPEG data",
        cause="a picture of the data is damaged",
        fix="headway data prepare finds and lists such files, and leaves them out",
    ),
    FailureRule(
        name="damaged-data",
        pattern=r"checksum (?:does not match|mismatch)|zlib\.error|BadZipFile|unexpected end of (?:file|data)"
        r"|EOFError: Compressed file ended|ArrowInvalid",
        cause="data or a download is incomplete or damaged",
        fix="headway data verify DEST; then fetch or prepare it again",
    ),
    FailureRule(
        name="read-only",
        pattern=r"Read-only file system|EROFS",
        cause="something is written where nothing may be",
        fix="write below $HEADWAY_RUN_DIR (it is kept), or name a folder of yours under `outputs`",
    ),
    FailureRule(
        name="not-writable",
        pattern=r"PermissionError: \[Errno 13\] Permission denied: '(?P<path>[^']+)'|: Permission denied$",
        cause="a file or folder may not be read or written by the user that trains",
        fix="ls -l it; in containers the user is yours (docker) or 1000 (kubernetes): chmod or chown it to that",
    ),
)
