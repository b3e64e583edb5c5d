"""Problems that would stop a job in a cluster, and notes for its plan. Makes no request: needs no credentials."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from headway.core.errors import Problem
from headway.packaging import image_contents, reference
from headway.packaging.supervisor_runtime import is_ready_image, unavailable_reason
from headway.pricing.table import allocatable, load
from headway.rundir.status import output_problems
from headway.spec.loading import dump
from headway.storage import local_path
from headway.storage.secrets import parse
from headway.targets.checks import dependency_notes, image_problems, interpreter_problems
from headway.targets.kubernetes import pod, trainjob
from headway.targets.kubernetes.options import SECRETS, WORK, Options

if TYPE_CHECKING:
    from headway.spec import Job


# A cluster itself checks every object before a run starts (`lifecycle.dry_run`). The checks here need none: they find
# what can be seen in a job file, and say which key to change.


MAX_LABEL = 63
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?)?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")


def label_problem(key: str, value: str) -> str | None:
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > 253 or not _DNS_SUBDOMAIN.fullmatch(prefix)):
        return f"{prefix!r} cannot be the prefix of a label"
    if len(name) > MAX_LABEL or not _LABEL_NAME.fullmatch(name):
        return f"{key!r} cannot be a label"
    if len(value) > MAX_LABEL or not _LABEL_VALUE.fullmatch(value):
        return f"{value!r} cannot be the value of the label {key}"
    return None


def is_name(text: str) -> bool:
    """Return whether the text is a DNS label, as namespaces' names must be."""
    return len(text) <= 63 and re.fullmatch(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?", text) is not None


def is_subdomain(text: str) -> bool:
    """Return whether the text is a DNS subdomain, as most other objects' names must be."""
    return len(text) <= 253 and _DNS_SUBDOMAIN.fullmatch(text) is not None


ENTRY = "targets"
_RESERVED_LABELS = ("headway.", "app.kubernetes.io/managed-by")
_RESERVED_PATHS = (*pod.WRITABLE_DIRS.values(), WORK, SECRETS, "/dev/shm")


def problems(job: Job, options: Options) -> Iterator[Problem]:
    yield from _image_problems(job)
    yield from interpreter_problems(job)
    yield from _url_problems(job)
    yield from _mount_problems(job)
    yield from _secret_problems(job)
    yield from _accelerator_problems(job, options)
    yield from _size_problems(job, options)
    yield from _option_problems(options)
    yield from _supervisor_problems(job, options)


def _supervisor_problems(job: Job, options: Options) -> Iterator[Problem]:
    """Check that the supervisor can be brought into an image that has no Headway inside."""
    if not options.supervisor or not is_ready_image(dump(job)):
        return
    if options.engine == "trainjob":
        what = "a TrainJob cannot have the init container that brings the supervisor into the image"
        yield Problem(what=what, where=f"{ENTRY}.supervisor", fix="engine: statefulset, which needs no operator")
    reason = unavailable_reason()
    if reason:
        what = f"the supervisor cannot be brought into {job.image.uri}: {reason}"
        fix = "plan on Linux with that processor; or remove `supervisor`, and install Headway in the image"
        yield Problem(what=what, where=f"{ENTRY}.supervisor", fix=fix)
    for problem in reference.problems({"repository": options.supervisor}, "supervisor"):
        fix = problem.fix.replace("repository:", "supervisor:")
        yield Problem(what=problem.what, where=f"{ENTRY}.supervisor", fix=fix)


def _program(job: Job, options: Options) -> str:
    program = image_contents.program_of(dump(job), options.python)
    return " or ".join(dict.fromkeys(program.names)) if program else "what the program needs"


_PUSH_WITH = "if this machine has not pushed it yet, with docker or podman here (elsewhere: headway image --push)"


def _foreign_image_notes(job: Job, options: Options, image: str) -> Iterator[str]:
    """Note what an image that Headway did not make must have in it."""
    if not is_ready_image(dump(job)):
        yield f"{image} must have Headway installed: the planned code and Headway are fetched when a pod starts"
    elif options.supervisor:
        yield f"`headway run` builds and pushes the supervisor's image to {options.supervisor} first, {_PUSH_WITH}"
        yield f"{image} is not looked into: it must have {_program(job, options)}"
    else:
        yield (
            f"{image} must have Headway installed; with `supervisor: REPOSITORY` in the target's entry, and "
            "headway image --push --on TARGET, any image will do"
        )


def notes(job: Job, ranks: int, options: Options) -> Iterator[str]:
    if not job.image.uri:
        yield f"`headway run` builds and pushes the image to {job.image.repository} first, {_PUSH_WITH}"
    foreign = job.image.uri or job.image.dockerfile
    if foreign:
        yield from _foreign_image_notes(job, options, foreign)
    yield from dependency_notes(job, f"{foreign} is used as it is" if foreign else "")
    if job.budget.hours is not None and job.max_wait is None:
        yield "max_wait is not given: the cluster's own limit leaves a day for waiting"
    if options.engine == "trainjob":
        release = options.trainer or pod.NEWEST
        unsupported = trainjob.unsupported_fields(options, release)
        if unsupported:
            yield f"TrainJob {release} cannot set: {'; '.join(unsupported)}"
        if options.trainer is None:
            yield f"rendered for Kubeflow Trainer {release}; the run is rendered for the release it finds installed"
        yield "a preempted pod counts against the backoffLimit of its runtime; headway resume starts the run again"
    if options.engine == "trainjob" and options.service_account and not options.token:
        patch = f"kubectl -n {options.namespace} patch serviceaccount {options.service_account} -p"
        yield f"a TrainJob cannot withhold its account's token: {patch} '{{\"automountServiceAccountToken\": false}}'"
    if options.token and options.service_account:
        account = options.service_account
        yield f"token: pods may do what {account} may; to view pods and services: {view_role_commands(options)}"
    yield from _node_notes(job, options)
    for name, secret in job.secrets.items():
        if secret.as_ == "file" and "CREDENTIALS" in name:
            yield f"secrets.{name}: a key file works; a service_account with Workload Identity needs none"


def view_role_commands(options: Options) -> str:
    """Return the commands that let the pods' account view the pods and services of its namespace, and nothing else."""
    kubectl, account = f"kubectl -n {options.namespace} create", options.service_account
    role = f"{kubectl} role headway-view --verb=get,list,watch --resource=pods,services"
    binding = f"{kubectl} rolebinding headway-view-{account} --role=headway-view"
    return f"{role} && {binding} --serviceaccount={options.namespace}:{account}"


def _node_notes(job: Job, options: Options) -> Iterator[str]:
    resources = job.resources
    if options.platform == "plain" and (resources.spot or resources.accelerator):
        yield "platform: plain selects no nodes for accelerator or spot: select them with node_selector"
    if resources.spot and options.platform == "gke" and options.grace > pod.SPOT_GRACE_S:
        yield f"spot nodes allow {pod.SPOT_GRACE_S:g} s from SIGTERM to SIGKILL, whatever `grace` is"
    if resources.nodes > 1:
        for mount in job.mounts:
            if mount.pvc:
                yield f"mounts: {mount.pvc} must be ReadWriteMany or ReadOnlyMany for {resources.nodes} nodes"
    if any(mount.path for mount in job.mounts):
        yield "mounts: a path is a folder of the node on which the pod is scheduled"


def _image_problems(job: Job) -> Iterator[Problem]:
    yield from image_problems(job)
    if job.image.uri is None and job.image.repository is None:
        what = "a cluster pulls its image from a registry, and the job names none"
        yield Problem(what=what, where="image", fix=f"image: {{repository: {reference.ARTIFACT_REGISTRY}}}")


def _url_problems(job: Job) -> Iterator[Problem]:
    """Check that pods can reach every place that the job reads or writes."""
    urls = {"outputs": job.outputs, "export.to": job.export.to, "init_from": job.init_from}
    plain = dump(job)
    for key, url in urls.items():
        if url and _is_local_path(plain, url):
            what = f"pods cannot see {url}, a folder of this machine"
            fix = f"{key}: gs://BUCKET/…, or a folder below one of `mounts`"
            yield Problem(what=what, where=key, fix=fix)
    for part in ("train", "val", "test"):
        for source in getattr(job.data, part):
            if not source.source.startswith("builtin:") and _is_local_path(plain, source.source):
                what = f"pods cannot see {source.source}, a folder of this machine"
                fix = "put it into a bucket (headway data prepare --to gs://BUCKET/…), or below one of `mounts`"
                yield Problem(what=what, where=f"data.{part}", fix=fix)
    if pod.covering_mount(plain, job.outputs):
        yield from output_problems(job.outputs)


def _is_local_path(plain: dict[str, Any], place: str) -> bool:
    if re.match(r"(?!file:|memory:)[a-z0-9]+://", place):
        return False
    return local_path(place) is None or pod.covering_mount(plain, place) is None


def _mount_problems(job: Job) -> Iterator[Problem]:
    for mount in job.mounts:
        if mount.at.rstrip("/") in _RESERVED_PATHS or mount.at == "/":
            what = f"{mount.at} is used by Headway inside a pod"
            yield Problem(what=what, where="mounts", fix="mount it at another path, such as /data")
        elif ":" in mount.at:
            yield Problem(what=f"{mount.at} has a colon, which no path of a mount may have", where="mounts")
        if mount.pvc and not is_subdomain(mount.pvc):
            yield Problem(what=f"{mount.pvc!r} cannot name a claim", where="mounts", fix="kubectl get pvc")


def _secret_problems(job: Job) -> Iterator[Problem]:
    for name, secret in job.secrets.items():
        where = parse(secret.ref)
        if where.kind == "k8s" and not is_subdomain(where.name.partition("/")[0]):
            yield Problem(what=f"{where} cannot name a Secret", where=f"secrets.{name}", fix="kubectl get secrets")


def _accelerator_problems(job: Job, options: Options) -> Iterator[Problem]:
    wanted = job.resources.accelerator
    if wanted is None or options.platform != "gke" or wanted.kind == "GPU" or pod.accelerator(wanted.kind):
        return
    close = get_close_matches(wanted.kind, pod.ACCELERATORS, n=1)
    known = f"one of {', '.join(pod.ACCELERATORS)}"
    fix = f"{close[0] if close else known}; or platform: plain with a node_selector, on another cluster"
    yield Problem(what=f"GKE has no {wanted.kind}", where="resources.accelerator", fix=fix)


def _size_problems(job: Job, options: Options) -> Iterator[Problem]:
    """Check that a pod fits on the machine that the job names: GKE reserves some of each node for itself."""
    resources = job.resources
    size = load().size(resources.machine) if resources.machine and options.platform == "gke" else None
    if size is None:
        return
    cpus, gib = allocatable(*size)
    larger = "a larger `machine`"
    if resources.cpus and resources.cpus > cpus:
        what = f"{resources.cpus} CPUs fit on no {resources.machine}: GKE leaves {cpus:.2f} of {size[0]:g} to pods"
        yield Problem(what=what, where="resources.cpus", fix=f"cpus: {max(1, int(cpus - 0.3))}, or {larger}")
    if resources.memory and resources.memory / 2**30 > gib:
        what = f"this memory fits on no {resources.machine}: GKE leaves {gib:.1f} of {size[1]:g} GiB to pods"
        yield Problem(what=what, where="resources.memory", fix=f"memory: {int(gib - 0.5)}GiB, or {larger}")


def _option_problems(options: Options) -> Iterator[Problem]:
    if not is_name(options.namespace):
        what = f"{options.namespace!r} cannot be a namespace"
        yield Problem(what=what, where=ENTRY, fix="namespace: lower case letters, digits and dashes, at most 63")
    if options.token and not options.service_account:
        fix = f"service_account: NAME; kubectl -n {options.namespace} create serviceaccount NAME makes one"
        yield Problem(what="token: true needs a service_account, whose token the pods get", where=ENTRY, fix=fix)
    for key in ("service_account", "priority", "runtime"):
        value = getattr(options, key)
        if value is not None and not is_subdomain(value):
            yield Problem(what=f"{value!r} cannot be a {key}", where=ENTRY, fix=f"correct `{key}`")
    for key, mapping in (("labels", options.labels), ("node_selector", options.node_selector)):
        for name, value in mapping.items():
            wrong = label_problem(str(name), str(value))
            if key == "labels" and str(name).startswith(_RESERVED_LABELS):
                wrong = f"{name} is set by Headway"
            if wrong:
                yield Problem(what=f"{key}: {wrong}", where=ENTRY, fix=f"correct `{key}`")
    for toleration in options.tolerations:
        unknown = sorted(set(toleration) - {"key", "operator", "value", "effect", "tolerationSeconds"})
        if unknown:
            what = f"a toleration has no {unknown[0]!r}"
            yield Problem(what=what, where=ENTRY, fix="tolerations: [{key: …, operator: Exists, effect: NoSchedule}]")
