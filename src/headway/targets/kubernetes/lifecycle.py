"""Create and delete a run's objects in a cluster.

Submit creates all objects or none and starts the workload last; it is where references to secrets are resolved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headway.core.errors import BadInput, RunBusy, TargetError
from headway.core.plan import RUN
from headway.core.types import ORIGIN, OWNER, OWNER_NAME, Handle, Receipt
from headway.rundir.layout import RunFolder
from headway.rundir.lease import spent_s
from headway.rundir.status import END_RECORD_S, PROCESS_EXIT_S, ended_or_never_started, grace_s
from headway.rundir.submission import owner
from headway.storage.secrets import resolve
from headway.targets.kubernetes import checks, client, manifests, status, trainjob
from headway.targets.kubernetes import options as kubernetes_options
from headway.targets.kubernetes import pod as kubernetes_pod
from headway.targets.kubernetes.client import AlreadyExists, Api, Forbidden, NotFound, Object
from headway.targets.kubernetes.options import Options, Trainer, selector

if TYPE_CHECKING:
    from headway.core.plan import Plan


# Teardown


LOOK_S = 0.5
FORCE_S = 60.0  # wait for force-deleted pods to leave the listing
SETTLE_S = 60.0  # wait for the cluster's garbage collector
_TRAINING = ("StatefulSet", "PyTorchJob", "TrainJob")


def take_down(api: Api, options: Options, handle: Handle) -> Receipt:
    """Delete all objects of this run, found by label: the workload, its pods after the grace period, then the rest.

    Idempotent: objects that are already gone count as removed. The receipt comes from a listing made at the end.
    """
    before = _everything(api, options, handle)
    ended = ended_or_never_started(handle)
    patience = PROCESS_EXIT_S if ended else grace_s(handle) + END_RECORD_S
    for item in before:
        if item["kind"] in _TRAINING:
            client.delete(api, item["kind"], options.namespace, item["metadata"]["name"])
    _await(lambda: not _live_pods(api, options, handle), patience + PROCESS_EXIT_S)
    remove(api, options, handle.run, handle.url)
    left = sorted(map(client.shown, _everything(api, options, handle)))
    known = [] if handle.details.get(ORIGIN) else [str(each) for each in handle.details.get("objects", ())]
    created = list(dict.fromkeys([*map(client.shown, before), *known]))
    return Receipt(
        run=handle.run,
        created=tuple(created),
        removed=tuple(name for name in created if name not in left),
        left=tuple(left),
    )


def remove(api: Api, options: Options, run: str, url: str) -> None:
    """Delete all objects of a run, its pods without a grace period, and wait until their names are free again."""
    chosen, needed = selector(run, url), client.KINDS_OF[options.engine]
    there = client.everything(api, options.namespace, chosen, needed=needed)
    for item in there:
        by_force = 0 if item["kind"] == "Pod" else None
        client.delete(api, item["kind"], options.namespace, item["metadata"]["name"], grace_s=by_force)
    for pod in status.workers(api, options, run, url):
        client.delete(api, "Pod", options.namespace, pod.name, grace_s=0)
    _await(lambda: not status.workers(api, options, run, url), FORCE_S)
    if there:
        _await(lambda: not client.everything(api, options.namespace, chosen, needed=needed), SETTLE_S)


def _everything(api: Api, options: Options, handle: Handle) -> list[Object]:
    chosen = selector(handle.run, handle.url)
    return client.everything(api, options.namespace, chosen, needed=client.KINDS_OF[options.engine])


def _live_pods(api: Api, options: Options, handle: Handle) -> list[status.Pod]:
    return [pod for pod in status.workers(api, options, handle.run, handle.url) if pod.live]


def _await(done: Callable[[], bool], within_s: float) -> None:
    limit = time.monotonic() + within_s
    while not done() and time.monotonic() < limit:
        time.sleep(LOOK_S)


def submit(api: Api, options: Options, plan: Plan, run: str, folder: RunFolder) -> dict[str, Any]:
    """Create all objects and start the run; return the details by which the handle finds it again.

    Raises RunBusy if another client is starting it. Any failure removes everything that was created.
    """
    url = folder.url
    release = installed_trainer(api, options) if options.engine == "trainjob" else None
    used_s = spent_s(folder)
    secrets = {name: resolve(reference) for name, reference in kubernetes_pod.brought(plan).items()}
    limit, us = kubernetes_pod.of_plan(plan, used_s), owner()
    values = {
        RUN: run,
        kubernetes_options.FOLDER: kubernetes_options.folder_hash(url),
        OWNER: us.id,
        OWNER_NAME: us.name,
        kubernetes_options.EXPIRES: "" if limit is None else str(int(time.time() + limit)),
    }
    requests = manifests.requests(plan, options, release=release, spent_s=used_s)
    filled = [kubernetes_options.filled(request.body, values) for request in requests]
    bodies, stroke = filled[:-1], filled[-1]
    _hold_rules(bodies, run)
    _require_free(api, options, run, url)
    made: list[Object] = []
    try:
        remove(api, options, run, url)  # leftovers of an earlier attempt or a killed client
        for body in bodies:
            made.append(_make(api, body, made, secrets))
        _start(api, stroke)
    except BaseException as error:  # Ctrl-C too: a partial process group cannot train, but is billed
        remove(api, options, run, url)
        if isinstance(error, AlreadyExists):
            raise RunBusy(f"somebody else is starting {run}", fix=f"headway status {run}") from None
        raise
    return {
        "objects": [client.shown(item) for item in bodies],
        "namespace": options.namespace,
        "engine": options.engine,
        **({"trainer": release} if release else {}),
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
    found = trainjob.release_of(schema)
    if found is None:
        raise BadInput("this cluster's TrainJob is of a release that Headway does not know", fix=INSTALL_TRAINER)
    if options.trainer is not None and options.trainer != found:
        what = f"the job is for Kubeflow Trainer {options.trainer}, and this cluster has {found}"
        raise BadInput(what, where="targets", fix=f"trainer: '{found}', or leave it out")
    return found


_TRAINER = "github.com/kubeflow/trainer.git/manifests/overlays"
INSTALL_TRAINER = (
    f'kubectl apply --server-side -k "{_TRAINER}/manager?ref=v2.3.0" && '
    f'kubectl apply --server-side -k "{_TRAINER}/runtimes?ref=v2.3.0"'
)


def _make(api: Api, body: Object, made: list[Object], secrets: Mapping[str, str]) -> Object:
    uids = [str(each["metadata"]["uid"]) for each in made[:2]]  # of the creation guard and the starting object
    body = kubernetes_options.filled(
        body, dict(zip((kubernetes_options.FUSE_UID, kubernetes_options.OWNER_UID), uids, strict=False))
    )
    if body["kind"] == "Secret":
        body = {**body, "stringData": dict(secrets)}
    return client.create(api, body)


def _start(api: Api, stroke: Object) -> None:
    """Send the patch that detaches the run from its creation guard and starts it.

    From then on the run no longer depends on this client. The guard is left to expire, not deleted: a garbage
    collector that has just read the old ownerReferences would delete the run together with it.
    """
    try:
        client.change(api, stroke)
    except NotFound:
        what = f"{client.shown(stroke)} took too long to be made, and is gone with its fuse"
        raise TargetError(what, fix="once more, nearer to the cluster") from None


def _hold_rules(bodies: list[Object], run: str) -> None:
    """Raise BadInput for what the cluster or an operator's webhook would reject after half of it was created."""
    wrong = [what for body in bodies for what in checks.admission_problems(body)]
    if wrong:
        raise BadInput(f"{run}: {wrong[0]}", fix="another --name" if "name" in wrong[0] else "")


def _require_free(api: Api, options: Options, run: str, url: str) -> None:
    """Raise if the name is in use: RunBusy for this run itself, BadInput for a namesake from another folder."""
    kind = manifests.WORKLOAD[options.engine]
    try:
        there = client.read(api, kind, options.namespace, run)
    except NotFound:
        there = None
    if there is None:
        return
    other = client.annotation(there, kubernetes_options.URL_ANNOTATION)
    if other == url:
        if "deletionTimestamp" in there["metadata"] or _over(there):
            return
        raise RunBusy(f"{run} is in the cluster already", fix=f"headway stop {run}")
    what = f"namespace {options.namespace} has a {kind} called {run}" + (f", of {other}" if other else "")
    raise BadInput(what, fix="another --name, or another namespace")


def _over(item: Object) -> bool:
    """Return whether the operator's conditions say that its job has ended."""
    ends = ("Succeeded", "Failed", "Complete")
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(each.get("type") in ends and each.get("status") == "True" for each in conditions)
