"""The plan's price: cost per hour, expected duration, expected cost and ceiling. Also whether buckets are in-region.

Numbers are rounded to a tenth of a cent, so that the same inputs give the same bytes on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headway.core.errors import Denied, HeadwayError, NoBucket, Problem, StoreError
from headway.core.plan import BUDGET_USD, EXPORT_S, USD_PER_HOUR
from headway.plugins import plugin_of
from headway.pricing.estimate import Device, Estimate, PastRun, device_of, estimate, past_runs

if TYPE_CHECKING:
    from headway.pricing.quote import Quote
    from headway.pricing.table import Table
    from headway.spec import Job


CEILING_HOURS = 24.0  # of a billed run whose job names no budget
# The seconds that a start takes at least: until an interpreter runs; until torch and data are loaded; until a billed
# machine does its first work. A smaller budget would be spent on nothing.
START_S, RECIPE_START_S, BILLED_START_S = 2.0, 10.0, 30.0
COMPARED_ACCELERATORS = ("T4", "L4", "V100", "A100")
EXPORT_STEP_S = 30.0  # EXPORT_S is rounded up in steps, so that plans are stable


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """The price of an hour, and the time that a budget in dollars allows."""

    quote: Quote | None

    @property
    def priced(self) -> bool:
        return self.quote is not None and not self.quote.missing

    def with_ceiling(self, job: Job, options: Mapping[str, Any]) -> Job:
        """Return the job with a budget of 24 hours if it is billed and neither it nor its target names a limit."""
        if options.get("timeout"):  # Vertex AI's own, of each submission
            return job
        named = job.budget.unlimited or job.budget.usd is not None or job.budget.hours is not None
        billed = self.quote is not None or options.get("up")
        return job if named or not billed else replace(job, budget=replace(job.budget, hours=CEILING_HOURS))

    def budget_problems(self, job: Job, budget_s: float | None) -> Iterable[Problem]:
        """Yield the problem of a budget that a start alone would spend."""
        least = START_S if job.recipe is None else RECIPE_START_S
        least = max(least, BILLED_START_S) if self.priced else least
        if budget_s is not None and budget_s < least:
            what = f"the budget is {budget_s:.3g} s, and a start alone takes about {least:.0f} s here"
            yield Problem(what=what, where="budget", fix=_raised_budget(job, budget_s, least))

    def within(self, job: Job) -> Job:
        """Return the job with its budget in hours: dollars are converted by the price of all nodes."""
        usd = job.budget.usd
        if usd is None or self.quote is None or self.quote.billed_usd <= 0:
            return job
        allowed = usd / self.quote.billed_usd
        hours = allowed if job.budget.hours is None else min(allowed, job.budget.hours)
        return replace(job, budget=replace(job.budget, hours=hours))

    def variables(self, job: Job) -> dict[str, str]:
        """Return the variables by which ranks show cost in the progress line."""
        if self.quote is None or not self.priced:
            return {}
        prices = {USD_PER_HOUR: f"{self.quote.billed_usd:.6g}"}
        limit = ceiling(job, self.quote)
        return prices if limit is None else {**prices, BUDGET_USD: f"{limit:.6g}"}


def reserved_s(job: Job, dumped: Mapping[str, Any]) -> dict[str, str]:
    """Return the variable with the duration of earlier exports, so that ranks reserve enough budget for this one."""
    if job.budget.usd is None and job.budget.hours is None:
        return {}
    from headway.pricing.quote import export_s

    seconds = export_s(dumped)
    if seconds is None or seconds <= EXPORT_STEP_S:  # that much is reserved anyway
        return {}
    return {EXPORT_S: f"{math.ceil(seconds / EXPORT_STEP_S) * EXPORT_STEP_S:g}"}


def _raised_budget(job: Job, budget_s: float, least_s: float) -> str:
    """Return a budget that is ten times what a start takes."""
    if job.budget.usd is not None and (job.budget.hours is None or job.budget.hours * 3600 > budget_s * 1.001):
        return f"--set budget.usd={job.budget.usd * 10 * least_s / budget_s:.2g}"
    return f"--set budget.hours={10 * least_s / 3600:.2g}"


def cost_of(job: Job, kind: str, options: Mapping[str, Any]) -> Cost:
    """Quote the job. Reads no price table for a target that bills nothing."""
    if options.get("price") is None and plugin_of(kind).list_price_factor is None:
        return Cost(quote=None)
    from headway.pricing.quote import quote

    return Cost(quote=quote(job, kind, options))


def ceiling(job: Job, bill: Quote) -> float | None:
    """Return the most that the budget allows it to cost; None if nothing limits it."""
    limits = [] if job.budget.usd is None else [job.budget.usd]
    if job.budget.hours is not None:
        limits.append(job.budget.hours * bill.billed_usd)
    return min(limits, default=None)


def price_record(job: Job, dumped: Mapping[str, Any], kind: str, cost: Cost, *, cpus: int | None) -> dict[str, Any]:
    """Return the plan's price record; for a free target, only what the same job would take and cost elsewhere."""
    past = past_runs()
    device = device_of(dumped, kind, cpus)
    guess = estimate(dumped, device, past)
    record: dict[str, Any] = {}
    if cost.quote is not None:
        record = _bill_record(job, cost.quote, guess)
    if guess is not None:
        record |= {"expected_hours": round(guess.hours, 4), "basis": guess.basis, "estimated_by": guess.how}
    if "://" in job.outputs:
        record |= _storage_record(dumped, past, cost)
    table = compare_accelerators(dumped, cost.quote, past) if guess is not None else []
    return {**record, "elsewhere": table} if table else record


def _storage_record(dumped: Mapping[str, Any], past: list[PastRun], cost: Cost) -> dict[str, Any]:
    from headway.pricing.quote import stored_data

    stored = stored_data(dumped, past, cost.quote.region if cost.quote is not None else "")
    if stored is None:
        return {}
    numbers = {
        "checkpoints": stored.checkpoints,
        "gb": round(stored.gb, 3),
        "usd_per_month": round(stored.usd_per_month, 4),
        "usd_per_gb_month": round(stored.usd_per_gb_month, 5),
    }
    return {"storage": numbers}


def _bill_record(job: Job, bill: Quote, guess: Estimate | None) -> dict[str, Any]:
    if bill.missing:
        return {"missing": bill.missing, "region": bill.region, "dated": bill.dated}
    limit = ceiling(job, bill)
    record: dict[str, Any] = {
        "usd_per_hour": round(bill.price.usd, 5),
        "spot_usd_per_hour": round(bill.price.spot_usd, 5),
        "expected_usd": None if guess is None else round(guess.hours * bill.billed_usd, 3),
        "ceiling_usd": None if limit is None else round(limit, 3),
        "billed": "spot" if bill.spot else "on demand",
        "nodes": bill.nodes,
        "items": [
            {"what": item.what, "usd_per_hour": item.price.usd, "spot_usd_per_hour": item.price.spot_usd}
            for item in bill.items
        ],
    }
    if bill.region:
        record |= {"region": bill.region, "dated": bill.dated, "management_factor": bill.factor}
    if bill.disk_gb:
        record["disk"] = {
            "gb": round(bill.disk_gb * bill.nodes, 3),
            "kind": bill.disk_kind,
            "usd_per_month": round(bill.disk_usd_per_month, 3),
            "usd_per_hour": round(bill.disk_usd, 5),
        }
    return record


def compare_accelerators(
    job: Mapping[str, Any], bill: Quote | None, past: list[PastRun], table: Table | None = None
) -> list[dict[str, Any]]:
    """Compare hours and cost on one of each common accelerator, in the quote's region or the default one."""
    from headway.pricing.quote import DEFAULT_REGION
    from headway.pricing.table import ACCELERATOR, MACHINE, load, machine_for

    table = table or load()
    region = bill.region if bill is not None and bill.region else DEFAULT_REGION
    factor = bill.factor if bill is not None else 1.0
    rows = []
    for kind in COMPARED_ACCELERATORS:
        guess = estimate(job, Device(kind=kind), past)
        machine = machine_for(kind, 1)
        body = table.price(MACHINE, machine, region) if machine else None
        extra = table.price(ACCELERATOR, kind, region)
        if guess is None or body is None or extra is None:
            continue
        price = (body + extra).times(factor)
        rows.append(
            {
                "accelerator": kind,
                "machine": machine,
                "region": region,
                "hours": round(guess.hours, 3),
                "usd": round(guess.hours * price.usd, 3),
                "spot_usd": round(guess.hours * price.spot_usd, 3),
                "basis": guess.basis,
            }
        )
    return rows


# Bucket locations: traffic between regions is slow and billed. Makes requests to Google.


# Multi-region locations, by the prefixes of the regions that they cover.
_WIDE = {"US": ("us-",), "EU": ("europe-",), "ASIA": ("asia-",), "NAM4": ("us-central1", "us-east1"),
         "EUR4": ("europe-north1", "europe-west4"), "EUR5": ("europe-west1", "europe-west2"),
         "EUR7": ("europe-west2", "europe-west3"), "EUR8": ("europe-west3", "europe-west6"),
         "ASIA1": ("asia-northeast1", "asia-northeast2")}  # fmt: skip


def far_buckets(job: Job, kind: str, options: Mapping[str, Any]) -> list[str]:
    """Describe each bucket of the job that is in another region than its target. Ignores other clouds' buckets."""
    from headway.pricing.quote import is_billed_by_google, region_of

    if not is_billed_by_google(kind, options):
        return []
    region = region_of(options)
    found = []
    for bucket in sorted(set(_bucket_urls(job))):
        try:
            location = bucket_location(bucket)
        except HeadwayError as error:  # not knowing the location is no reason not to train
            found.append(f"the region of gs://{bucket} is unknown: {error.problem.what}")
            continue
        if not is_near(location, region):
            found.append(
                f"gs://{bucket} is in {location}, and the job runs in {region}: reads are slower, and traffic is billed"
            )
    return found


def is_near(location: str, region: str) -> bool:
    """Return whether a bucket's location is, or covers, a region."""
    wide = _WIDE.get(location.upper())
    return region.startswith(wide) if wide else location.lower() == region.lower()


def _bucket_urls(job: Job) -> Iterable[str]:
    data = [source.source for part in (job.data.train, job.data.val, job.data.test) for source in part]
    for url in (job.outputs, job.export.to or "", *data):
        if url.startswith("gs://"):
            yield url.removeprefix("gs://").partition("/")[0]


def bucket_location(bucket: str) -> str:
    """Look up a bucket's location as Cloud Storage names it: US-EAST1, or a multi-region."""
    from headway.storage import google

    url = google.STORAGE.url(f"storage/v1/b/{bucket}")
    client = google.GoogleClient(needed_for="the region of a bucket")
    try:
        answer = client.request(google.STORAGE, "GET", url, query={"fields": "location"})
    except google.NotFound:
        raise NoBucket(
            f"there is no bucket gs://{bucket}", fix=f"gcloud storage buckets create gs://{bucket}"
        ) from None
    except google.GoogleError as error:
        if error.code in (401, 403):
            raise Denied(f"no permission to read the location of gs://{bucket} (storage.buckets.get)") from error
        raise
    location = answer.get("location")
    if not location:  # or an emulator, which is in no region
        raise StoreError(f"Cloud Storage names no location for gs://{bucket}")
    return str(location)
