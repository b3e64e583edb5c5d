"""Kubernetes target: one pod per node, with the supervisor as process 1. The cluster bills for what runs in it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from headway.core.errors import BadInput, HeadwayError, Problem
from headway.core.plan import Limits
from headway.core.types import (
    EXPIRES_LABEL,
    OWNER_LABEL,
    OWNER_NAME_LABEL,
    RUN_LABEL,
    ExecCommand,
    Handle,
    LogLine,
    Receipt,
    Request,
    Status,
    Target,
)
from headway.packaging.dockerfile import PLATFORM
from headway.packaging.engine import Engine
from headway.packaging.engine import run as run_command
from headway.rundir import submission
from headway.rundir.layout import RECEIPT, SUPERVISOR, RunFolder
from headway.rundir.logs import tail
from headway.rundir.status import (
    StatusInputs,
    end_check,
    folder_of,
    read_status_inputs,
    release_dead_lease,
    status_without_target,
)
from headway.storage import open_store
from headway.targets.checks import install_in_image, no_process
from headway.targets.kubernetes import checks, client, lifecycle, manifests
from headway.targets.kubernetes import pod as kubernetes_pod
from headway.targets.kubernetes import status as kubernetes_status
from headway.targets.kubernetes.client import Api, Client, Object
from headway.targets.kubernetes.kubeconfig import IN_POD, load
from headway.targets.kubernetes.options import KIND, URL_ANNOTATION, Options, url_of
from headway.targets.kubernetes.status import ClusterView

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.core.types import Finding
    from headway.spec import Job

DEFAULTS = Options()
POLL_S = 1.0  # poll interval of the run folder while following a log …
QUERY_S = 5.0  # … and of the cluster
SUBMIT_S = 60.0  # time allowed between a client's submission record and the end of its submit


@dataclass(frozen=True, slots=True)
class KubernetesTarget(Target):
    options_class: ClassVar[type[Any]] = Options
    list_price_factor: ClassVar[float | None] = 1.0
    scheduler_env: ClassVar[bool] = True
    has_pods: ClassVar[bool] = True
    options: Options = DEFAULTS
    api: Api | None = field(default=None, compare=False)  # the only access to a cluster; None: a `Client`, made on use
    engine: Engine = field(default=run_command, compare=False)  # builds and pushes images

    def check(self, job: Job) -> list[Problem]:
        """Find the problems that would stop the job, without contacting a cluster."""
        return list(checks.problems(job, self.options))

    def notes(self, job: Job, ranks: int) -> list[str]:
        """Return remarks for the plan that do not stop the job."""
        return list(checks.notes(job, ranks, self.options))

    def online(self, plan: Plan) -> list[Problem]:
        """Return what the cluster and its webhooks would refuse, by a dry run of every object. Creates nothing."""
        return lifecycle.dry_run(self._api(), self.options, plan)

    def limits(self, job: Job) -> Limits:
        return kubernetes_pod.limits(job, self.options)

    def image_platform(self, job: Job) -> str:
        """Return the platform of images into which the supervisor's own image brings it; empty without one."""
        return PLATFORM if self.options.supervisor else ""

    def cpus(self, job: Job, ranks: int) -> int:
        """Return the CPUs per node that the ranks' threads share."""
        return job.resources.cpus or ranks

    def render(self, plan: Plan) -> list[Request]:
        """Return every object that `submit` creates, in order, with references to secrets but never their values."""
        return manifests.requests(plan, self.options)

    def submit(self, plan: Plan, run: str) -> Handle:
        folder = RunFolder(open_store(url_of(plan, run)))
        details = lifecycle.submit(self._api(), self.options, plan, run, folder, engine=self.engine)
        details |= {} if self.api else {"place": self._client().recorded_place()}
        return Handle(
            target=plan.target, run=run, url=folder.url, details={**details, "submitted": submission.utc_now()}
        )

    def status(self, handle: Handle) -> Status:
        # Query the cluster before reading the folder: a pod that is gone by then writes nothing more.
        try:
            view: ClusterView | None = kubernetes_status.read_cluster(self._api(handle), self.options, handle)
            api_problem = ""
        except HeadwayError as error:  # unreachable, logged out, or another cluster: what it has is not known
            view, api_problem = None, error.problem.what
        inputs = read_status_inputs(folder_of(handle))
        if view is None:
            return inputs.end or status_without_target(handle, api_problem)
        return kubernetes_status.status(
            self._api(handle), self.options, handle, view, inputs, submitting=_is_submitting(handle, inputs)
        )

    def logs(self, handle: Handle, *, follow: bool, rank: int | None) -> Iterator[LogLine]:
        """Yield the log lines of the run folder, which has them all even after the pods are gone.

        If the run never started and its folder has none, yield the output of the pods' containers.
        """
        ended, no_lines = self._end_check(handle) if follow else None, True
        for line in tail(folder_of(handle), spool=None, ended=ended, rank=rank):
            no_lines = False
            yield line
        if no_lines and rank in (None, SUPERVISOR) and not read_status_inputs(folder_of(handle)).started:
            for pod, timestamp, text in kubernetes_status.container_logs(
                self._api(handle), self.options, handle.run, handle.url
            ):
                yield LogLine(rank=SUPERVISOR, time=timestamp, text=f"{pod}: {text}")

    def down(self, handle: Handle) -> Receipt:
        """Delete the workload, wait for its checkpoint, delete everything else, and list again. Idempotent."""
        receipt = lifecycle.take_down(self._api(handle), self.options, handle)
        if not receipt.left:
            release_dead_lease(handle)
        return receipt

    def list_runs(self) -> list[Handle]:
        needed = client.KINDS_BY_ENGINE[self.options.engine]
        items = client.list_all(self._api(), self.options.namespace, RUN_LABEL, needed=needed)
        runs = {
            (client.annotation(item, URL_ANNOTATION), client.label(item, OWNER_LABEL)): item for item in items[::-1]
        }
        return [
            Handle(target=KIND, run=client.label(runs[key], RUN_LABEL), url=key[0], details=_owner_details(runs[key]))
            for key in sorted(runs)
            if key[0]
        ]

    def links(self, handle: Handle) -> dict[str, str]:
        """Return the run's pages in the Google Cloud console, by title."""
        return kubernetes_status.links(handle, self.options, self._context())

    def evidence(self, handle: Handle) -> list[str]:
        """Return the cluster's warnings about the run for `headway why`, including those about deleted pods."""
        return kubernetes_status.cluster_events(self._api(handle), self.options, handle.run, handle.url)

    def startup_events(self, handle: Handle) -> list[str]:
        """Return the cluster's events about the run and its pods, also those that are no warnings."""
        api, options = self._api(handle), self.options
        pods = kubernetes_status.workers(api, options, handle.run, handle.url)
        names = [handle.run, f"{handle.run}-reaper", *(pod.name for pod in pods)]
        return kubernetes_status.events(api, options.namespace, names, warnings=False)

    def kept_until(self, handle: Handle) -> float | None:
        """Return the end of `keep`: until then a finished PyTorchJob and its pods can be looked at with kubectl."""
        ended = folder_of(handle).ended() if self.options.engine == "pytorchjob" else None
        return None if ended is None else submission.unix_seconds(ended.get("time")) + self.options.keep

    def exec_command(self, handle: Handle) -> ExecCommand:
        if shutil.which("kubectl") is None:
            raise BadInput("kubectl is not installed on this machine", fix="https://kubernetes.io/docs/tasks/tools")
        options = self.options
        pods = kubernetes_status.workers(self._api(handle), options, handle.run, handle.url)
        live = next((pod for pod in pods if pod.running), None)
        if live is None:
            raise no_process(handle, "pod")
        name = (self.options.context or "") if self.api else self._client(handle).context_name
        context = ("--context", name) if name and name != IN_POD else ()
        inside = ("exec", "--stdin", "--quiet", live.name, "--", options.python)
        return ExecCommand(
            where=f"pod {live.name}",
            words=("kubectl", *context, "--namespace", options.namespace, *inside),
            url=handle.url,
            python=options.python,
            install=install_in_image,
        )

    def doctor(self, job: Job) -> Iterator[Finding]:
        """Check what this job needs in the cluster; each finding has the exact command that adds what is missing."""
        from headway.targets.kubernetes import doctor

        return doctor.findings(self._api(), self.options, job, self._context())

    def billable_resources(self) -> list[str]:
        """List existing GPU nodes, idle or not, with their cost and the command that removes them."""
        from headway.targets.kubernetes import doctor

        return doctor.billable_resources(self._api(), self.options)

    def _api(self, handle: Handle | None = None) -> Api:
        return self.api or self._client(handle)

    def _client(self, handle: Handle | None = None) -> Client:
        """Return a client of the cluster in which the run was started; without a run, of the target's."""
        place = (handle.details.get("place") if handle else None) or {}
        return Client(context=self.options.context, place=place, fix=kubernetes_status.renew_credentials(self.options))

    def _context(self) -> str:
        if self.options.context:
            return self.options.context
        try:
            return load().context
        except HeadwayError:  # no kubeconfig: leave out whatever is derived from the context's name
            return ""

    def _end_check(self, handle: Handle) -> Callable[[], bool]:
        return end_check(handle, self.status, folder_poll_s=POLL_S, status_poll_s=QUERY_S)


def _owner_details(item: Object) -> dict[str, str]:
    return {
        "expires": client.label(item, EXPIRES_LABEL),
        "owner": client.label(item, OWNER_LABEL),
        "owner_name": client.annotation(item, OWNER_NAME_LABEL),
    }


def _is_submitting(handle: Handle, inputs: StatusInputs) -> bool:
    """Return whether a client recorded a submission less than SUBMIT_S ago and has not finished it yet."""
    if inputs.started:
        return False
    starts = [entry for entry in submission.read(folder_of(handle))["attempts"] if not entry.get("failed")]
    announced_at = str(starts[-1].get("at", "")) if starts else ""
    submitted_at = str(handle.details.get("submitted", ""))
    removed_at = str((folder_of(handle).read_json(RECEIPT) or {}).get("at", ""))  # taken down since the submission
    recent = abs(time.time() - submission.unix_seconds(announced_at)) < SUBMIT_S
    return recent and max(submitted_at, removed_at) < announced_at
