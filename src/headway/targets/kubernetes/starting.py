"""Making a run's objects in a cluster: all of them or none, and what starts it last. Secrets become values here."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headway.errors import BadInput, RunBusy, TargetError
from headway.owner import owner
from headway.planning.model import RUN
from headway.runfolder import RunFolder
from headway.secrets import resolve
from headway.spent import spent_s
from headway.targets.base import OWNER, OWNER_NAME
from headway.targets.kubernetes import kinds, lasting, manifests, names, pod, removal, rules, trainjob
from headway.targets.kubernetes.api import Api, Forbidden, Gone, Object, Taken
from headway.targets.kubernetes.options import Options, Trainer

if TYPE_CHECKING:
    from headway.planning.model import Plan


def submit(api: Api, options: Options, plan: Plan, run: str, folder: RunFolder) -> dict[str, Any]:
    """Make everything; the details by which it is found again."""
    url = folder.url
    release = installed_trainer(api, options) if options.engine == "trainjob" else None
    used_s = spent_s(folder)
    secrets = {name: resolve(reference) for name, reference in pod.brought(plan).items()}
    limit, us = lasting.of_plan(plan, used_s), owner()
    values = {
        RUN: run,
        names.FOLDER: names.folder_hash(url),
        OWNER: us.id,
        OWNER_NAME: us.name,
        names.EXPIRES: "" if limit is None else str(int(time.time() + limit)),
    }
    requests = manifests.requests(plan, options, release=release, spent_s=used_s)
    filled = [names.filled(request.body, values) for request in requests]
    bodies, stroke = filled[:-1], filled[-1]
    _hold_rules(bodies, run)
    _require_free(api, options, run, url)
    made: list[Object] = []
    try:
        removal.remove(api, options, run, url)  # what an earlier attempt or a killed client may have left
        for body in bodies:
            made.append(_make(api, body, made, secrets))
        _start(api, stroke)
    except BaseException as error:  # Ctrl-C too: half a gang cannot train, but can be billed
        removal.remove(api, options, run, url)
        if isinstance(error, Taken):
            raise RunBusy(f"somebody else is starting {run}", fix=f"headway status {run}") from None
        raise
    return {
        "objects": [kinds.shown(item) for item in bodies],
        "namespace": options.namespace,
        "engine": options.engine,
        **({"trainer": release} if release else {}),
    }


def installed_trainer(api: Api, options: Options) -> Trainer | None:
    """The release whose TrainJob the cluster has. One that the job names must be that one."""
    try:
        crd = api("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{trainjob.CRD}")
    except Gone:
        raise BadInput("this cluster has no TrainJob", fix=INSTALL_TRAINER) from None
    except Forbidden:
        return options.trainer  # we may not look: the job's word, or the newest
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
    uids = [str(each["metadata"]["uid"]) for each in made[:2]]  # of the fuse, and of what starts the run
    body = names.filled(body, dict(zip((names.FUSE_UID, names.OWNER_UID), uids, strict=False)))
    if body["kind"] == "Secret":
        body = {**body, "stringData": dict(secrets)}
    return kinds.create(api, body)


def _start(api: Api, stroke: Object) -> None:
    """The one request from which on the run is there, whatever becomes of us.

    The fuse is left to burn down: a garbage collector that has read its dependent just before would take that along.
    """
    try:
        kinds.change(api, stroke)
    except Gone:
        what = f"{kinds.shown(stroke)} took too long to be made, and is gone with its fuse"
        raise TargetError(what, fix="once more, nearer to the cluster") from None


def _hold_rules(bodies: list[Object], run: str) -> None:
    """What the cluster, or an operator's webhook, would refuse after half of it was made."""
    wrong = [what for body in bodies for what in rules.problems(body)]
    if wrong:
        raise BadInput(f"{run}: {wrong[0]}", fix="another --name" if "name" in wrong[0] else "")


def _require_free(api: Api, options: Options, run: str, url: str) -> None:
    """Nothing of that name runs here: neither this run, nor another folder's run of the same name."""
    kind = manifests.WORKLOAD[options.engine]
    try:
        there = kinds.read(api, kind, options.namespace, run)
    except Gone:
        there = None
    if there is None:
        return
    other = kinds.annotation(there, names.URL_ANNOTATION)
    if other == url:
        if "deletionTimestamp" in there["metadata"] or _over(there):
            return
        raise RunBusy(f"{run} is in the cluster already", fix=f"headway stop {run}")
    what = f"namespace {options.namespace} has a {kind} called {run}" + (f", of {other}" if other else "")
    raise BadInput(what, fix="another --name, or another namespace")


def _over(item: Object) -> bool:
    """Whether an operator says that its job has ended."""
    ends = ("Succeeded", "Failed", "Complete")
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(each.get("type") in ends and each.get("status") == "True" for each in conditions)
