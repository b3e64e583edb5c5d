"""Create and delete a run's objects in a cluster.

`submit` creates all objects or none and starts the workload last. It resolves the secrets that the cluster cannot read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headway.core.errors import BadInput, Problem, RunBusy, TargetError
from headway.core.plan import RUN
from headway.core.progress import report_progress
from headway.core.retry import wait_until
from headway.core.types import ORIGIN, OWNER, OWNER_NAME, Handle, Receipt
from headway.packaging import build, supervisor_image
from headway.packaging.engine import Engine
from headway.packaging.engine import run as run_command
from headway.rundir.layout import RunFolder
from headway.rundir.lease import spent_s
from headway.rundir.status import END_RECORD_S, PROCESS_EXIT_S, ended_or_never_started, grace_s
from headway.rundir.submission import Owner, owner
from headway.storage.secrets import resolve
from headway.targets.kubernetes import client, manifests, status, trainjob
from headway.targets.kubernetes import options as kubernetes_options
from headway.targets.kubernetes import pod as kubernetes_pod
from headway.targets.kubernetes.checks import MAX_LABEL
from headway.targets.kubernetes.client import AlreadyExists, Api, ApiError, Forbidden, NotFound, Object, Unreachable
from headway.targets.kubernetes.options import GUARD_UID, OWNER_UID, Options, Trainer, selector

if TYPE_CHECKING:
    from headway.core.plan import Plan


# Teardown


POLL_S = 0.5
FORCE_S = 60.0  # wait for force-deleted pods to leave the listing
GC_WAIT_S = 60.0  # wait for the cluster's garbage collector
MAX_STATEFULSET_NAME = 52  # its pods carry a label of its name, a dash and a ten-character hash
_WORKLOAD_KINDS = ("StatefulSet", "PyTorchJob", "TrainJob")


def take_down(api: Api, options: Options, handle: Handle) -> Receipt:
    """Delete all objects of this run, found by label: the workload, its pods after the grace period, then the rest.

    Idempotent: objects that are already gone count as removed. The receipt comes from a listing made at the end.
    """
    before = _list_run(api, options, handle)
    ended = ended_or_never_started(handle)
    grace = PROCESS_EXIT_S if ended else grace_s(handle) + END_RECORD_S
    for item in before:
        if item["kind"] in _WORKLOAD_KINDS:
            client.delete(api, item["kind"], options.namespace, item["metadata"]["name"])
    wait_until(lambda: not _live_pods(api, options, handle), POLL_S, within_s=grace + PROCESS_EXIT_S)
    remove(api, options, handle.run, handle.url)
    recorded = _recorded_objects(options, handle)
    for known in recorded:
        known.delete(api)
    wait_until(lambda: not any(known.exists(api, handle.url) for known in recorded), POLL_S, within_s=GC_WAIT_S)
    left = {*map(client.display_name, _list_run(api, options, handle))}
    left |= {known.shown for known in recorded if known.exists(api, handle.url)}
    created = [*map(client.display_name, before), *(known.shown for known in recorded)]
    return Receipt.of_listing(handle.run, created, sorted(left))


@dataclass(frozen=True, slots=True)
class _Recorded:
    """An object that the launcher created, by its record: deleted whatever a listing shows."""

    kind: str
    namespace: str
    shown: str  # kind/name
    uid: str  # empty: recorded by an earlier version

    @property
    def name(self) -> str:
        return self.shown.partition("/")[2]

    def delete(self, api: Api) -> None:
        """Delete it, but not another object that has its name by now."""
        if self.uid:
            client.delete(api, self.kind, self.namespace, self.name, uid=self.uid)

    def exists(self, api: Api, url: str) -> bool:
        item = client.read(api, self.kind, self.namespace, self.name)
        if item is None:
            return False
        if self.uid:
            return str(item["metadata"].get("uid", "")) == self.uid
        return client.annotation(item, kubernetes_options.URL_ANNOTATION) == url


def _recorded_objects(options: Options, handle: Handle) -> list[_Recorded]:
    if handle.details.get(ORIGIN):  # a copy: they are the original's
        return []
    kinds, uids = {kind.lower(): kind for kind in client.REST_PATHS}, handle.details.get("uids") or {}
    shown = [str(each) for each in handle.details.get("objects", ())]
    return [
        _Recorded(kinds[kind], str(handle.details.get("namespace", options.namespace)), each, str(uids.get(each, "")))
        for each in shown
        if (kind := each.partition("/")[0]) in kinds
    ]


def remove(api: Api, options: Options, run: str, url: str) -> None:
    """Delete all objects of a run, its pods without a grace period, and wait until their names are free again."""
    label_selector, needed = selector(run, url), client.KINDS_BY_ENGINE[options.engine]
    objects = client.list_all(api, options.namespace, label_selector, needed=needed)
    for item in objects:
        pod_grace_s = 0 if item["kind"] == "Pod" else None
        client.delete(api, item["kind"], options.namespace, item["metadata"]["name"], grace_s=pod_grace_s)
    for pod in status.workers(api, options, run, url):
        client.delete(api, "Pod", options.namespace, pod.name, grace_s=0)
    wait_until(lambda: not status.workers(api, options, run, url), POLL_S, within_s=FORCE_S)
    if objects:
        wait_until(
            lambda: not client.list_all(api, options.namespace, label_selector, needed=needed),
            POLL_S,
            within_s=GC_WAIT_S,
        )


def _list_run(api: Api, options: Options, handle: Handle) -> list[Object]:
    label_selector = selector(handle.run, handle.url)
    return client.list_all(api, options.namespace, label_selector, needed=client.KINDS_BY_ENGINE[options.engine])


def _live_pods(api: Api, options: Options, handle: Handle) -> list[status.Pod]:
    return [pod for pod in status.workers(api, options, handle.run, handle.url) if pod.live]


def push_images(engine: Engine, options: Options, plan: Plan) -> str:
    """Build and push the images that pods need and that this machine has not pushed.

    Return a note for the user if there is no container engine here: the registry must then have them already.
    """
    image, outputs = kubernetes_pod.image_to_push(plan), str(plan.job["outputs"])
    supervisor = kubernetes_pod.supervisor_image_name(plan, options)
    missing = [image.name] if image else []
    if supervisor and not supervisor_image.is_pushed(supervisor):
        missing.append(supervisor)
    command = build.find_engine(engine) if missing else None
    if command is None:
        names = " and ".join(missing)
        return f"no docker or podman responds here: {names} must be in its registry already" if missing else ""
    for name in missing:
        report_progress(f"building and pushing {name}", 0, 0)
        if image is not None and name == image.name:
            build.push(engine, command, image, outputs)
        else:
            supervisor_image.push(engine, command, str(options.supervisor), plan.code)
    return ""


def submit(
    api: Api, options: Options, plan: Plan, run: str, folder: RunFolder, *, engine: Engine = run_command
) -> dict[str, Any]:
    """Push images, create all objects and start the run; return the details by which the handle finds it again.

    Raises RunBusy if another client is starting it. Any failure removes everything that was created.
    """
    url = folder.url
    _require_short_name(options, plan, run)
    release = installed_trainer(api, options) if options.engine == "trainjob" else None
    used_s = spent_s(folder)
    secrets = {name: resolve(reference) for name, reference in kubernetes_pod.client_secrets(plan).items()}
    _require_name_free(api, options, run, url)
    note = push_images(engine, options, plan)
    values = _placeholders(run, url, owner(), limit_s=kubernetes_pod.plan_lifetime_s(plan, used_s))
    requests = manifests.requests(plan, options, release=release, spent_s=used_s)
    rendered = [kubernetes_options.fill_placeholders(request.body, values) for request in requests]
    bodies, start_patch = rendered[:-1], rendered[-1]
    created: list[Object] = []
    try:
        remove(api, options, run, url)  # leftovers of an earlier attempt or a killed client
        for body in bodies:
            created.append(_create_object(api, body, created, secrets))
        _start(api, start_patch)
    except BaseException as error:  # Ctrl-C too: a partial process group cannot train, but is billed
        remove(api, options, run, url)
        if isinstance(error, AlreadyExists):
            raise RunBusy(f"another client is already starting {run}", fix=f"headway status {run}") from None
        raise
    return {
        "objects": [client.display_name(item) for item in bodies],
        "uids": {client.display_name(item): str(item["metadata"].get("uid", "")) for item in created},
        "namespace": options.namespace,
        "engine": options.engine,
        **({"trainer": release} if release else {}),
        **({"note": note} if note else {}),
    }


def _placeholders(run: str, url: str, current_owner: Owner, *, limit_s: float | None) -> dict[str, str]:
    """Return the values of a rendered object's placeholders."""
    return {
        RUN: run,
        kubernetes_options.FOLDER: kubernetes_options.folder_hash(url),
        OWNER: current_owner.id,
        OWNER_NAME: current_owner.name,
        kubernetes_options.EXPIRES: "" if limit_s is None else str(int(time.time() + limit_s)),
    }


def installed_trainer(api: Api, options: Options) -> Trainer | None:
    """Return the installed Kubeflow Trainer release; raise BadInput if the job names another one."""
    try:
        crd = api("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{trainjob.CRD}")
    except NotFound:
        raise BadInput("this cluster has no TrainJob", fix=INSTALL_TRAINER) from None
    except Forbidden:
        return options.trainer  # may not read the CRD: trust the job; None means the newest
    versions = crd.get("spec", {}).get("versions") or []
    schema: Object = next(
        (each.get("schema", {}).get("openAPIV3Schema", {}) for each in versions if each.get("served")), {}
    )
    release = trainjob.release_of(schema)
    if release is None:
        raise BadInput("this cluster's TrainJob is of a release that Headway does not know", fix=INSTALL_TRAINER)
    if options.trainer is not None and options.trainer != release:
        what = f"the job is for Kubeflow Trainer {options.trainer}, and this cluster has {release}"
        raise BadInput(what, where="targets", fix=f"trainer: '{release}', or leave it out")
    return release


_TRAINER = "github.com/kubeflow/trainer.git/manifests/overlays"
INSTALL_TRAINER = (
    f'kubectl apply --server-side -k "{_TRAINER}/manager?ref=v2.3.0" && '
    f'kubectl apply --server-side -k "{_TRAINER}/runtimes?ref=v2.3.0"'
)


def _create_object(api: Api, body: Object, created: list[Object], secrets: Mapping[str, str]) -> Object:
    uids = [str(each["metadata"]["uid"]) for each in created[:2]]  # of the creation guard and the starting object
    body = kubernetes_options.fill_placeholders(
        body, dict(zip((kubernetes_options.GUARD_UID, kubernetes_options.OWNER_UID), uids, strict=False))
    )
    if body["kind"] == "Secret":
        body = {**body, "stringData": dict(secrets)}
    return client.create(api, body)


def _start(api: Api, start_patch: Object) -> None:
    """Send the patch that detaches the run from its creation guard and starts it.

    From then on the run no longer depends on this client. The guard is left to expire, not deleted: a garbage
    collector that has just read the old ownerReferences would delete the run together with it.
    """
    try:
        client.patch(api, start_patch)
    except NotFound:
        what = f"{client.display_name(start_patch)} was not started in time, so Kubernetes deleted it"
        raise TargetError(what, fix="try again, from a machine closer to the cluster") from None


def dry_run(api: Api, options: Options, plan: Plan) -> list[Problem]:
    """Ask the cluster to validate every object of the run with `?dryRun=All`. Creates nothing.

    A webhook that does not support dry runs is not asked: it answers when the object is created.
    """
    try:
        release = installed_trainer(api, options) if options.engine == "trainjob" else None
    except BadInput as error:
        return [error.problem]
    run, uid = f"{plan.job['name']}-{plan.name_hash}-0", str(UUID(int=0))
    values = {**_placeholders(run, options.namespace, owner(), limit_s=None), GUARD_UID: uid, OWNER_UID: uid}
    refusals: dict[str, Problem] = {}
    for request in manifests.requests(plan, options, release=release)[:-1]:
        try:
            client.create(api, kubernetes_options.fill_placeholders(request.body, values), dry_run=True)
        except AlreadyExists:
            continue
        except Unreachable:
            raise
        except ApiError as error:
            if "does not support dry run" not in error.message:
                what = f"the cluster refuses {request.name}: {error.problem.what}"
                refusals.setdefault(error.problem.what, replace(error.problem, what=what))
    return list(refusals.values())


def _require_short_name(options: Options, plan: Plan, run: str) -> None:
    """Raise BadInput for a name that a cluster accepts although it can then create no pods from it."""
    longest = MAX_STATEFULSET_NAME if options.engine == "statefulset" else MAX_LABEL
    if options.engine == "trainjob":
        longest = trainjob.MAX_NAME - len(str(plan.nodes - 1))
    if len(run) > longest:
        kind = manifests.WORKLOAD[options.engine]
        what = f"{run}: a {kind}'s name has at most {longest} characters here: its pods' names and labels contain it"
        raise BadInput(what, fix="another --name")


def _require_name_free(api: Api, options: Options, run: str, url: str) -> None:
    """Raise if the name is in use: RunBusy for this run itself, BadInput for a namesake from another folder."""
    kind = manifests.WORKLOAD[options.engine]
    try:
        existing = client.read(api, kind, options.namespace, run)
    except NotFound:
        existing = None
    if existing is None:
        return
    other = client.annotation(existing, kubernetes_options.URL_ANNOTATION)
    if other == url:
        if "deletionTimestamp" in existing["metadata"] or _has_finished(existing):
            return
        raise RunBusy(f"{run} is in the cluster already", fix=f"headway stop {run}")
    what = f"namespace {options.namespace} has a {kind} called {run}" + (f", of {other}" if other else "")
    raise BadInput(what, fix="another --name, or another namespace")


def _has_finished(item: Object) -> bool:
    """Return whether the operator's conditions say that its job has ended."""
    terminal = ("Succeeded", "Failed", "Complete")
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(each.get("type") in terminal and each.get("status") == "True" for each in conditions)
