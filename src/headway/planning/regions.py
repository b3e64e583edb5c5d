"""Whether buckets are where the job runs: traffic between regions is slow, and billed. Asks Google."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headway.errors import Denied, HeadwayError, NoBucket, Transient
from headway.price.quote import GOOGLE, region_of

if TYPE_CHECKING:
    from headway.spec import Job

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# What a location that is no region covers, by how the names of its regions begin.
_WIDE = {"US": ("us-",), "EU": ("europe-",), "ASIA": ("asia-",), "NAM4": ("us-central1", "us-east1"),
         "EUR4": ("europe-north1", "europe-west4"), "EUR5": ("europe-west1", "europe-west2"),
         "EUR7": ("europe-west2", "europe-west3"), "EUR8": ("europe-west3", "europe-west6"),
         "ASIA1": ("asia-northeast1", "asia-northeast2")}  # fmt: skip


def elsewhere(job: Job, kind: str, options: Mapping[str, Any]) -> list[str]:
    """In words, each bucket of the job that is in another region than its target. Nothing for other clouds' buckets."""
    if kind not in GOOGLE or options.get("platform") == "plain":
        return []
    region = region_of(options)
    found = []
    for bucket in sorted(set(_buckets(job))):
        try:
            location = location_of(bucket)
        except HeadwayError as error:  # that it cannot be told is no reason not to train
            found.append(f"where gs://{bucket} is could not be found out: {error.problem.what}")
            continue
        if not near(location, region):
            found.append(
                f"gs://{bucket} is in {location}, and the job runs in {region}: reading it is slower, and billed"
            )
    return found


def near(location: str, region: str) -> bool:
    """Whether a bucket's location is, or covers, a region."""
    wide = _WIDE.get(location.upper())
    return region.startswith(wide) if wide else location.lower() == region.lower()


def _buckets(job: Job) -> Iterable[str]:
    data = [source.source for part in (job.data.train, job.data.val, job.data.test) for source in part]
    for url in (job.outputs, job.export.to or "", *data):
        if url.startswith("gs://"):
            yield url.removeprefix("gs://").partition("/")[0]


def location_of(bucket: str) -> str:
    """As Cloud Storage says it: US-EAST1, or a name that covers several regions."""
    from headway.storage.google import google_credentials

    transport: Any = import_module("google.auth.transport.requests")
    failures: Any = import_module("google.auth.exceptions")
    requests: Any = import_module("requests")
    host = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com").rstrip("/")
    credentials, _ = google_credentials(_SCOPE)
    try:
        answer = transport.AuthorizedSession(credentials).get(
            f"{host}/storage/v1/b/{bucket}", params={"fields": "location"}, timeout=20
        )
    except failures.RefreshError as error:
        raise Denied(f"Google refuses the credentials: {error}", fix="gcloud auth application-default login") from error
    except (failures.TransportError, requests.RequestException) as error:
        raise Transient(f"Cloud Storage cannot be reached: {error}") from error
    if answer.status_code == 404:
        raise NoBucket(f"there is no bucket gs://{bucket}", fix=f"gcloud storage buckets create gs://{bucket}")
    if answer.status_code in (401, 403):
        raise Denied(f"may not look at gs://{bucket} (storage.buckets.get)")
    location = answer.json().get("location") if answer.status_code == 200 else None
    if not location:  # or something that stands in for Cloud Storage, and is in no region
        raise Transient(f"Cloud Storage answers {answer.status_code} for gs://{bucket}, and no location")
    return str(location)
