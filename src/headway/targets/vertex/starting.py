"""Handing a plan to Vertex AI: the package or image first, then one custom job, in the first place that takes it."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headway.errors import BadInput, Conflict, TargetError
from headway.image import build
from headway.image.engine import Engine
from headway.owner import owner
from headway.secrets import parse
from headway.storage import ABSENT, join, open_store
from headway.targets import spawn
from headway.targets.vertex import jobs, package, rendering
from headway.targets.vertex.api import Client, NoRoom, Refused, Unreachable
from headway.targets.vertex.checks import secret_problem
from headway.targets.vertex.jobs import Job
from headway.targets.vertex.options import Options
from headway.targets.vertex.places import Place, of_job

if TYPE_CHECKING:
    from headway.planning.model import Plan

TRIES = 3  # of one creation whose answer is lost
LOOK_S = 10.0  # between looks at a job that waits, before the next place is tried
Sleep = Callable[[float], None]


def refuse_secrets(plan: Plan, options: Options) -> None:
    """Also those that were named when it was launched."""
    for name, secret in plan.job.get("secrets", {}).items():
        problem = secret_problem(name, parse(str(secret["ref"])), options)
        if problem is not None:
            raise BadInput(problem.what, where=problem.where, fix=problem.fix)


def lay_ready(plan: Plan, options: Options, engine: Engine) -> None:
    """What the machines will fetch. Named by content: what is there already is not sent again."""
    outputs = str(plan.job["outputs"])
    image = rendering.to_be_built(plan, options)
    if image is not None:
        build.push(engine, "docker", image, outputs)
    if options.mode == "package":
        store, name = open_store(join(outputs, "code")), package.file_name(plan)
        try:
            store.write(name, package.sdist(plan, package.planned_code(plan, outputs)), when=ABSENT)
        except Conflict:
            pass  # the same content, sent earlier


def create(client: Client, plan: Plan, options: Options, run: str, sleep: Sleep) -> tuple[Job, Place]:
    """The job, in the first place that has room for it. `plan` says what is left of the budget."""
    refused: list[str] = []
    wanted = of_job(plan.job, options)
    for place in wanted:
        last = place == wanted[-1]
        try:
            job = _create_in(client, place, _body(plan, options, place, run))
            if last or options.switch_after is None or _leaves_the_queue(client, job, options.switch_after, sleep):
                return job, place
            client.cancel(job.name)
            refused.append(f"{place}: still {job.words} after {options.switch_after:g} s")
        except NoRoom as error:
            refused.append(f"{place}: {error.problem.what}")
            if last:
                raise _nowhere(refused, error) from error
    raise TargetError("; ".join(refused))  # unreachable: the last place returns or raises


def expected_s(plan: Plan, options: Options) -> float:
    """After this a job may be removed whatever happens."""
    return rendering.timeout_s(plan, options) + (plan.limits.max_wait_s or 86_400.0) + 3600.0


def _body(plan: Plan, options: Options, place: Place, run: str) -> dict[str, Any]:
    """As rendered, with the run's name in it, and whose it is."""
    us = owner()
    body: dict[str, Any] = spawn.named(rendering.custom_job(plan, options, place), run)
    own = {
        rendering.EXPIRES_LABEL: str(int(time.time() + expected_s(plan, options))),
        rendering.OWNER_LABEL: us.id,
        rendering.OWNER_NAME_LABEL: re.sub(r"[^a-z0-9_-]", "-", us.name.lower())[:63],
        rendering.START_LABEL: secrets.token_hex(8),
    }
    return {**body, "labels": {**body["labels"], **own}}


def _create_in(client: Client, place: Place, body: Mapping[str, Any]) -> Job:
    """Asked once more only when it is certain that no job was made."""
    start = str(body["labels"][rendering.START_LABEL])
    for tried in range(1, TRIES + 1):
        try:
            return jobs.job_of(client.create(place.region, body))
        except Unreachable as error:
            made = jobs.of_start(client, place.region, start)
            if made is not None:
                return made
            if tried == TRIES:
                raise Refused(error.problem.what, fix="look again in a while") from error
    raise AssertionError("the last try returns or raises")


def _leaves_the_queue(client: Client, job: Job, within_s: float, sleep: Sleep) -> bool:
    waited = 0.0
    while waited < within_s:
        pause = min(LOOK_S, within_s - waited)
        sleep(pause)
        waited += pause
        now = jobs.read(client, job.name)
        if now is not None and now.state not in ("JOB_STATE_QUEUED", "JOB_STATE_PENDING"):
            return True
    return False


def _nowhere(refused: list[str], error: NoRoom) -> NoRoom:
    if len(refused) == 1:
        return error
    what = "no place has room: " + "; ".join(refused)
    return NoRoom(what, status=error.status, said=error.said, fix=error.problem.fix)
