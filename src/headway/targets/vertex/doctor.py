"""Check a project's setup for a job, with the command that fixes each problem. Read-only, at no cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway.core.errors import HeadwayError, Problem
from headway.core.types import Finding
from headway.targets.vertex import checks, lifecycle
from headway.targets.vertex.client import ApiError, Client
from headway.targets.vertex.options import Options
from headway.targets.vertex.regions import places, regions

if TYPE_CHECKING:
    from headway.spec import Job

AGENT = "service-PROJECT-NUMBER@gcp-sa-aiplatform-cc.iam.gserviceaccount.com"


def refusals(client: Client, where: list[str]) -> Iterator[Problem]:
    """Yield a problem for each region in which Vertex AI refuses our requests."""
    for region in where:
        try:
            client.one(region)
        except ApiError as error:
            yield Problem(what=error.problem.what, where=f"targets.region {region}", fix=error.problem.fix)


def findings(client: Client, options: Options, job: Job) -> Iterator[Finding]:
    for problem in checks.problems(job, options):
        yield Finding("bad", f"{problem.where}: {problem.what}", problem.fix)
    for region in regions(options):
        try:
            client.one(region)
            running = lifecycle.live(client, [region])
            yield Finding("ok", f"Vertex AI answers for {client.project} in {region}; {len(running)} live runs there")
        except ApiError as error:
            yield Finding("bad", f"{region}: {error.problem.what}", error.problem.fix)
    yield _logging(client)
    yield Finding("ok", "it would go to " + ", then ".join(map(str, places(job.resources, options))))
    yield _account(client, options, job)


def _logging(client: Client) -> Finding:
    try:
        list(client.entries('resource.type="ml_job"', limit=1))
        return Finding("ok", "Cloud Logging can be read")
    except HeadwayError as error:
        return Finding("note", f"Cloud Logging cannot be read: {error.problem.what}", error.problem.fix)


def _account(client: Client, options: Options, job: Job) -> Finding:
    """Name the account that the job runs as and the role it needs. Only Google knows whether it has it."""
    who = options.service_account or AGENT
    bucket = job.outputs.removeprefix("gs://").partition("/")[0]
    fix = f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member=serviceAccount:{who}"
    what = f"the job runs as {options.service_account or 'Vertex AI’s own agent'}, which must be let write the bucket"
    return Finding("note", what, f"{fix} --role=roles/storage.objectUser")
