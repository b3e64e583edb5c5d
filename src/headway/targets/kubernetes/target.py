"""Kubernetes target: one pod a node, with the supervisor as its process 1. What runs in a cluster is billed by it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.core.errors import HeadwayError, Problem
from headway.core.plan import Limits
from headway.core.types import (
    EXPIRES_LABEL,
    OWNER_LABEL,
    OWNER_NAME_LABEL,
    RUN_LABEL,
    Handle,
    LogLine,
    Receipt,
    Request,
    Status,
)
from headway.rundir import submission
from headway.rundir.layout import RECEIPT, SUPERVISOR, RunFolder
from headway.rundir.logs import tail
from headway.rundir.status import StatusInputs, StatusPoller, evidence, folder_of, free_the_lease, over
from headway.storage import open_store
from headway.targets.kubernetes import checks, client, lifecycle, manifests
from headway.targets.kubernetes import pod as kubernetes_pod
from headway.targets.kubernetes import status as kubernetes_status
from headway.targets.kubernetes.client import Api, ApiError, Client, Object
from headway.targets.kubernetes.kubeconfig import load
from headway.targets.kubernetes.options import KIND, URL_ANNOTATION, Options, url_of
from headway.targets.kubernetes.status import ClusterView

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.core.types import Finding
    from headway.spec import Job

DEFAULTS = Options()
LOOK_S = 1.0  # between looks into the folder while a log is followed …
ASK_S = 5.0  # … and between questions to the cluster
SUBMIT_S = 60.0  # for a client that has announced a start to make it


@dataclass(frozen=True, slots=True)
class KubernetesTarget:
    options: Options = DEFAULTS
    api: Api | None = field(default=None, compare=False)  # the one seam to a cluster; by default the real one

    def check(self, job: Job) -> list[Problem]:
        """What would stop it, as far as can be said without a cluster."""
        return list(checks.problems(job, self.options))

    def notes(self, job: Job, ranks: int) -> list[str]:
        """What does not stop a job here, but a reader of its plan should know."""
        return list(checks.notes(job, ranks, self.options))

    def limits(self, job: Job) -> Limits:
        return kubernetes_pod.limits(job, self.options)

    def cpus(self, job: Job, ranks: int) -> int:
        """On each node: what the ranks' threads have to share."""
        return job.resources.cpus or ranks

    def render(self, plan: Plan) -> list[Request]:
        """Every object that `submit` makes, in order. Values of secrets are never in it, only where they lie."""
        return manifests.requests(plan, self.options)

    def submit(self, plan: Plan, run: str) -> Handle:
        folder = RunFolder(open_store(url_of(plan, run)))
        details = lifecycle.submit(self._api(), self.options, plan, run, folder)
        return Handle(target=plan.target, run=run, url=folder.url, details={**details, "submitted": submission.now()})

    def status(self, handle: Handle) -> Status:
        # The cluster is looked at before the folder: a pod that is gone has written all it will ever write.
        try:
            looked: ClusterView | None = kubernetes_status.look(self._api(), self.options, handle)
            trouble = ""
        except ApiError as error:
            looked, trouble = None, error.problem.what
        found = evidence(folder_of(handle))
        if looked is None:
            return found.end or _unasked(handle, trouble)
        return kubernetes_status.status(
            self._api(), self.options, handle, looked, found, submitting=_submitting(handle, found)
        )

    def logs(self, handle: Handle, *, follow: bool, rank: int | None) -> Iterator[LogLine]:
        """The run folder has them all, pods or none. Where it has none, what the pods' containers said themselves."""
        over, silent = self._over(handle) if follow else None, True
        for line in tail(folder_of(handle), spool=None, over=over, rank=rank):
            silent = False
            yield line
        if silent and rank in (None, SUPERVISOR) and not evidence(folder_of(handle)).started:
            for pod, moment, text in kubernetes_status.container_logs(
                self._api(), self.options, handle.run, handle.url
            ):
                yield LogLine(rank=SUPERVISOR, time=moment, text=f"{pod}: {text}")

    def down(self, handle: Handle) -> Receipt:
        """Delete what trains, wait for its checkpoint, delete the rest, look again. What is gone is success."""
        receipt = lifecycle.take_down(self._api(), self.options, handle)
        if not receipt.left:
            free_the_lease(handle)
        return receipt

    def found(self) -> list[Handle]:
        needed = client.KINDS_OF[self.options.engine]
        items = client.everything(self._api(), self.options.namespace, RUN_LABEL, needed=needed)
        runs = {
            (client.annotation(item, URL_ANNOTATION), client.label(item, OWNER_LABEL)): item for item in items[::-1]
        }
        return [
            Handle(target=KIND, run=client.label(runs[key], RUN_LABEL), url=key[0], details=_label(runs[key]))
            for key in sorted(runs)
            if key[0]
        ]

    def links(self, handle: Handle) -> dict[str, str]:
        """Where to look at it in a browser."""
        return kubernetes_status.links(handle, self.options, self._context())

    def evidence(self, handle: Handle) -> list[str]:
        """For `headway why`: the cluster's own words about the run, also about pods that are gone."""
        return kubernetes_status.cluster_events(self._api(), self.options, handle.run, handle.url)

    def doctor(self, job: Job) -> Iterator[Finding]:
        """What is ready for this job in the cluster, and the exact command for what is missing."""
        from headway.targets.kubernetes import doctor

        return doctor.findings(self._api(), self.options, job, self._context())

    def billable_resources(self) -> list[str]:
        """GPU nodes that are there, whether or not anybody trains, with what they cost and how to shrink them."""
        from headway.targets.kubernetes import doctor as pools

        return pools.billable_resources(self._api(), self.options)

    def _api(self) -> Api:
        return self.api or Client(context=self.options.context, fix=kubernetes_status.get_credentials(self.options))

    def _context(self) -> str:
        if self.options.context:
            return self.options.context
        try:
            return load().context
        except HeadwayError:  # none is known here: what is made from its name is left out
            return ""

    def _over(self, handle: Handle) -> Callable[[], bool]:
        return over(handle, self.status, look_s=LOOK_S, ask_s=ASK_S)


def _label(item: Object) -> dict[str, str]:
    return {
        "expires": client.label(item, EXPIRES_LABEL),
        "owner": client.label(item, OWNER_LABEL),
        "owner_name": client.annotation(item, OWNER_NAME_LABEL),
    }


def _submitting(handle: Handle, found: StatusInputs) -> bool:
    """Whether a client has announced a start a moment ago and has not said yet that it was made."""
    if found.started:
        return False
    starts = [entry for entry in submission.read(folder_of(handle))["attempts"] if not entry.get("failed")]
    announced = str(starts[-1].get("at", "")) if starts else ""
    made = str(handle.details.get("submitted", ""))
    removed = str((folder_of(handle).read_json(RECEIPT) or {}).get("at", ""))  # somebody has taken it down since
    return max(made, removed) < announced and abs(time.time() - submission.unix(announced)) < SUBMIT_S


def _unasked(handle: Handle, trouble: str) -> Status:
    """No cluster answers: what the folder says, and that nobody could be asked."""
    status = StatusPoller(folder_of(handle)).status()
    return Status(
        state=status.state, reason="; ".join(filter(None, (status.reason, trouble))), exit_code=status.exit_code
    )
