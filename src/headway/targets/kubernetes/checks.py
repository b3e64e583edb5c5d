"""Problems that would stop a job in a cluster, and notes for its plan. Makes no request: needs no credentials."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import Problem
from headway.packaging import reference, requirements
from headway.rundir.status import unwritable
from headway.spec.serialize import dump
from headway.storage import local_path
from headway.storage.secrets import parse
from headway.targets.kubernetes import admission, pod
from headway.targets.kubernetes.engines import trainjob
from headway.targets.kubernetes.options import SECRETS, WORK, Options

if TYPE_CHECKING:
    from headway.spec import Job

ENTRY = "targets"
_OURS = ("headway.", "app.kubernetes.io/managed-by")
_TAKEN = (*pod.OPEN.values(), WORK, SECRETS, "/dev/shm")


def problems(job: Job, options: Options) -> Iterator[Problem]:
    yield from _image(job)
    yield from _places(job)
    yield from _mounts(job)
    yield from _secrets(job)
    yield from _accelerator(job, options)
    yield from _entry(options)


def notes(job: Job, ranks: int, options: Options) -> Iterator[str]:
    if not job.image.uri:
        yield "the image must be in its registry before the run starts: headway image --push"
    else:
        yield f"{job.image.uri} must have Headway installed: the planned code and Headway are fetched when a pod starts"
    if job.budget.hours is not None and job.max_wait is None:
        yield "max_wait is not given: the cluster's own limit leaves a day for waiting"
    if options.engine == "trainjob":
        release = options.trainer or pod.NEWEST
        unsaid = trainjob.unsaid(options, release)
        if unsaid:
            yield f"TrainJob {release} has no words for: {'; '.join(unsaid)}"
        if options.trainer is None:
            yield f"rendered for Kubeflow Trainer {release}; the run is rendered for the release it finds installed"
        yield "a pod that is taken away counts against the backoffLimit of its runtime: headway resume starts it again"
    if options.engine == "trainjob" and options.service_account and not options.token:
        patch = f"kubectl -n {options.namespace} patch serviceaccount {options.service_account} -p"
        yield f"a TrainJob cannot withhold its account's token: {patch} '{{\"automountServiceAccountToken\": false}}'"
    yield from _about_nodes(job, options)
    for name, secret in job.secrets.items():
        if secret.as_ == "file" and "CREDENTIALS" in name:
            yield f"secrets.{name}: a key file works; a service_account with Workload Identity needs none"


def _about_nodes(job: Job, options: Options) -> Iterator[str]:
    resources = job.resources
    if options.platform == "plain" and (resources.spot or resources.accelerator):
        yield "platform: plain chooses no nodes for accelerator or spot: say which with node_selector"
    if resources.spot and options.platform == "gke" and options.grace > pod.SPOT_GRACE_S:
        yield f"spot nodes give {pod.SPOT_GRACE_S:g} s from SIGTERM to SIGKILL, whatever grace says"
    if resources.nodes > 1:
        for mount in job.mounts:
            if mount.pvc:
                yield f"mounts: {mount.pvc} must be ReadWriteMany or ReadOnlyMany for {resources.nodes} nodes"
    if any(mount.path for mount in job.mounts):
        yield "mounts: a path is the node's own folder, on whichever node a pod lands"


def _image(job: Job) -> Iterator[Problem]:
    yield from reference.problems(dump(job)["image"], job.name)
    if job.image.uri is None and job.image.repository is None:
        what = "a cluster pulls its image from a registry, and the job names none"
        fix = f"image: {{repository: {reference.ARTIFACT_REGISTRY}}}, then headway image --push"
        yield Problem(what=what, where="image", fix=fix)
    if job.requirements and not job.image.uri:
        yield from requirements.problems(Path(job.root), job.requirements)


def _places(job: Job) -> Iterator[Problem]:
    """Check that pods can reach every place that the job reads or writes."""
    wanted = {"outputs": job.outputs, "export.to": job.export.to, "init_from": job.init_from}
    plain = dump(job)
    for key, place in wanted.items():
        if place and _on_this_machine(plain, place):
            what = f"pods cannot see {place}, a folder of this machine"
            fix = f"{key}: gs://BUCKET/…, or a folder below one of `mounts`"
            yield Problem(what=what, where=key, fix=fix)
    for part in ("train", "val", "test"):
        for source in getattr(job.data, part):
            if not source.source.startswith("builtin:") and _on_this_machine(plain, source.source):
                what = f"pods cannot see {source.source}, a folder of this machine"
                fix = "put it into a bucket (headway data prepare --to gs://BUCKET/…), or below one of `mounts`"
                yield Problem(what=what, where=f"data.{part}", fix=fix)
    if pod.covering_mount(plain, job.outputs):
        yield from unwritable(job.outputs)


def _on_this_machine(plain: dict[str, Any], place: str) -> bool:
    if re.match(r"(?!file:|memory:)[a-z0-9]+://", place):
        return False
    return local_path(place) is None or pod.covering_mount(plain, place) is None


def _mounts(job: Job) -> Iterator[Problem]:
    for mount in job.mounts:
        if mount.at.rstrip("/") in _TAKEN or mount.at == "/":
            what = f"{mount.at} is used by Headway inside a pod"
            yield Problem(what=what, where="mounts", fix="mount it at another path, such as /data")
        elif ":" in mount.at:
            yield Problem(what=f"{mount.at} has a colon, which no path of a mount may have", where="mounts")
        if mount.pvc and not admission.is_subdomain(mount.pvc):
            yield Problem(what=f"{mount.pvc!r} cannot name a claim", where="mounts", fix="kubectl get pvc")


def _secrets(job: Job) -> Iterator[Problem]:
    for name, secret in job.secrets.items():
        where = parse(secret.ref)
        if where.kind == "k8s" and not admission.is_subdomain(where.name.partition("/")[0]):
            yield Problem(what=f"{where} cannot name a Secret", where=f"secrets.{name}", fix="kubectl get secrets")


def _accelerator(job: Job, options: Options) -> Iterator[Problem]:
    wanted = job.resources.accelerator
    if wanted is None or options.platform != "gke" or wanted.kind == "GPU" or pod.accelerator(wanted.kind):
        return
    close = get_close_matches(wanted.kind, pod.ACCELERATORS, n=1)
    known = f"one of {', '.join(pod.ACCELERATORS)}"
    fix = f"{close[0] if close else known}; or platform: plain with a node_selector, on another cluster"
    yield Problem(what=f"GKE has no {wanted.kind}", where="resources.accelerator", fix=fix)


def _entry(options: Options) -> Iterator[Problem]:
    if not admission.is_name(options.namespace):
        what = f"{options.namespace!r} cannot be a namespace"
        yield Problem(what=what, where=ENTRY, fix="namespace: lower case letters, digits and dashes, at most 63")
    for key in ("service_account", "priority", "runtime"):
        value = getattr(options, key)
        if value is not None and not admission.is_subdomain(value):
            yield Problem(what=f"{value!r} cannot be a {key}", where=ENTRY, fix=f"mend `{key}`")
    for key, mapping in (("labels", options.labels), ("node_selector", options.node_selector)):
        for name, value in mapping.items():
            wrong = admission.label_problem(str(name), str(value))
            if key == "labels" and str(name).startswith(_OURS):
                wrong = f"{name} is set by Headway"
            if wrong:
                yield Problem(what=f"{key}: {wrong}", where=ENTRY, fix=f"mend `{key}`")
    for toleration in options.tolerations:
        unknown = sorted(set(toleration) - {"key", "operator", "value", "effect", "tolerationSeconds"})
        if unknown:
            what = f"a toleration has no {unknown[0]!r}"
            yield Problem(what=what, where=ENTRY, fix="tolerations: [{key: …, operator: Exists, effect: NoSchedule}]")
