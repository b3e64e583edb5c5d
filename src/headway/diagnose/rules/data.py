"""Rules for errors of data, stores and secrets."""

from __future__ import annotations

from headway.diagnose.matching import FailureRule, Retry

RULES = (
    FailureRule(
        name="secret-not-found",
        pattern=r"there is no secret (?P<secret>\S+?)[,:]?(?: |$)|secrets? \"(?P<name>[^\"]+)\" not found"
        r"|couldn't find key (?P<key>\S+) in Secret|Secret \[projects/[^\]]+\] not found"
        r"|ResourceNotFoundException.*GetSecretValue",
        cause="a secret of the job file does not exist",
        fix="headway doctor   (names it, and the command that creates it)",
    ),
    FailureRule(
        name="secret-not-resolved",
        pattern=r"the variable (?P<variable>\w+) is not set|the secret's file cannot be read",
        cause="a secret of the job file is not available on the training machine",
        fix="headway doctor; secrets with env: must be exported in the shell that runs headway",
    ),
    FailureRule(
        name="wandb-key",
        pattern=r"wandb.*(?:api_key not configured|No API key configured|API key must be \d+ characters)"
        r"|wandb\.errors\.\w*(?:AuthenticationError|UsageError).*api.?key",
        cause="Weights & Biases has no API key on the training machine",
        fix="secrets: {WANDB_API_KEY: env:WANDB_API_KEY} in the job file; or --env WANDB_MODE=offline",
    ),
    FailureRule(
        name="gated-model",
        pattern=r"GatedRepoError|Cannot access gated repo|You are trying to access a gated repo",
        cause="the model or data set on Hugging Face needs your consent and a token",
        fix="accept its terms on its page, then secrets: {HF_TOKEN: env:HF_TOKEN} in the job file",
    ),
    FailureRule(
        name="bucket-not-found",
        pattern=r"The specified bucket does not exist|NoSuchBucket|bucket .* does not exist"
        r"|ContainerNotFound|The specified container does not exist",
        cause="the bucket does not exist",
        fix="gcloud storage buckets create gs://{bucket} --location={region}   (or fix the name in the job file)",
    ),
    FailureRule(
        name="data-not-prepared",
        pattern=r"is not a prepared data set|no manifest\.json",
        cause="the data exists, but has not been prepared",
        fix="headway data prepare SOURCE --to DEST, then use DEST in the job file",
    ),
    FailureRule(
        name="data-not-found",
        pattern=r"no such data: (?P<path>\S+)"
        r"|FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<file>[^']+)'"
        r"|NoSuchKey|No such object: (?P<object>\S+)|BlobNotFound",
        cause="a file or object that the training reads does not exist on the training machine",
        fix="list it under `data` with a URL (it is downloaded), or put it next to the job file (it is uploaded)",
        retry=Retry.ONCE,
    ),
    FailureRule(
        name="damaged-picture",
        pattern=r"cannot identify image file|image file is truncated|UnidentifiedImageError|broken data stream"
        r"|Corrupt JPEG data",
        cause="an image in the data is damaged",
        fix="headway data prepare finds, lists and skips such files",
    ),
    FailureRule(
        name="damaged-data",
        pattern=r"checksum (?:does not match|mismatch)|zlib\.error|BadZipFile|unexpected end of (?:file|data)"
        r"|EOFError: Compressed file ended|ArrowInvalid",
        cause="data or a download is incomplete or damaged",
        fix="headway data verify DEST; then download or prepare it again",
        retry=Retry.ONCE,
    ),
    FailureRule(
        name="read-only",
        pattern=r"Read-only file system|EROFS",
        cause="the script writes to a read-only file system",
        fix="write below $HEADWAY_RUN_DIR (it is kept), or set `outputs` to a writable folder",
    ),
    FailureRule(
        name="not-writable",
        pattern=r"PermissionError: \[Errno 13\] Permission denied: '(?P<path>[^']+)'|: Permission denied$",
        cause="the training user has no permission to read or write a file or folder",
        fix="check with ls -l; in containers the user is yours (docker) or 1000 (kubernetes): chmod or chown it",
    ),
)
