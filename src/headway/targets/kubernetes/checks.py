"""Problems that would stop a job in a cluster, and notes for its plan. Makes no request: needs no credentials."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import Problem
from headway.core.plan import RUN
from headway.packaging import reference, requirements
from headway.rundir.status import output_problems
from headway.spec.loading import dump
from headway.storage import local_path
from headway.storage.secrets import parse
from headway.targets.kubernetes import pod, trainjob
from headway.targets.kubernetes.options import SECRETS, WORK, Options

if TYPE_CHECKING:
    from headway.spec import Job


# Client-side admission checks: names, labels, and the rules of Kubeflow's webhooks and CRDs. Pure.


Object = Mapping[str, Any]
MAX_STATEFULSET_NAME = 52  # its pods carry a label of its name, a dash and a ten-character hash
MAX_LABEL = 63
_DNS_1035 = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?)?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_TRAINER_VARIABLES = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")


def admission_problems(body: Object) -> list[str]:
    """Describe why a cluster would reject one object; empty if it would accept it."""
    found = [*_metadata_problems(body["metadata"])]
    kind = body["kind"]
    if kind == "PyTorchJob":
        found += _pytorch_job_problems(body)
    elif kind == "TrainJob":
        found += _train_job_problems(body)
    elif kind == "StatefulSet":
        found += _stateful_set_problems(body)
    for where, template in pods(body):
        found += [f"{where}: {what}" for what in _pod_problems(template)]
    return found


def pods(body: Object) -> Iterator[tuple[str, Object]]:
    """Yield the pod templates of an object, each with its role."""
    spec = body.get("spec", {})
    if body["kind"] in ("StatefulSet", "Job"):
        yield "template", spec["template"]["spec"]
    for role, replica in spec.get("pytorchReplicaSpecs", {}).items():
        yield role, replica["template"]["spec"]


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


def _metadata_problems(metadata: Object) -> Iterator[str]:
    name = str(metadata["name"]).replace(RUN, "run")
    if len(name) > 63 or not _DNS_1035.fullmatch(name):
        yield f"{name!r} cannot be a name: lower case letters, digits and dashes, at most 63, starting with a letter"
    for key, value in metadata.get("labels", {}).items():
        problem = label_problem(key, re.sub(r"\{[A-Z_]+\}", "x", str(value)))
        if problem:
            yield problem


def _pytorch_job_problems(body: Object) -> Iterator[str]:
    """Check the webhook's rules: at most one Master, and in each role a container named pytorch with an image."""
    replicas = body["spec"].get("pytorchReplicaSpecs") or {}
    if not replicas:
        yield "a PyTorchJob needs replicas"
    for role, spec in replicas.items():
        if role not in ("Master", "Worker"):
            yield f"a PyTorchJob has no role {role}: only Master and Worker"
        containers = spec["template"]["spec"].get("containers") or []
        named = [each for each in containers if each["name"] == "pytorch"]
        if not named or not all(each.get("image") for each in containers):
            yield f"{role} needs a container named pytorch, with an image"
        if spec.get("restartPolicy", "OnFailure") not in ("Always", "OnFailure", "Never", "ExitCode"):
            yield f"{role} has no restart policy {spec['restartPolicy']}"
    if replicas.get("Master", {}).get("replicas", 1) != 1:
        yield "a PyTorchJob has one Master"
    if "elasticPolicy" in body["spec"] and "Worker" not in replicas:
        yield "an elastic PyTorchJob needs a Worker"


def _train_job_problems(body: Object) -> Iterator[str]:
    spec, name = body["spec"], str(body["metadata"]["name"])
    if not spec.get("runtimeRef", {}).get("name"):
        yield "a TrainJob needs a runtimeRef with a name"
    trainer = spec.get("trainer", {})
    for variable in trainer.get("env", ()):
        if variable["name"] in _TRAINER_VARIABLES:
            yield f"{variable['name']} is set by Kubeflow Trainer"
    longest = trainjob.MAX_NAME - len(str(trainer.get("numNodes", 1) - 1))
    if name != RUN and len(name) > longest:
        yield f"a TrainJob's name has at most {longest} characters here: its pods' names are made of it"
    if trainer.get("numNodes", 1) < 1 or trainer.get("numProcPerNode", 1) < 1:
        yield "a TrainJob has at least one node and one process on each"
    if spec.get("managedBy") not in (
        None,
        "trainer.kubeflow.org/trainjob-controller",
        "kueue.x-k8s.io/multikueue",
    ):
        yield "managedBy is trainer.kubeflow.org/trainjob-controller or kueue.x-k8s.io/multikueue"
    if spec.get("activeDeadlineSeconds", 1) < 1:
        yield "activeDeadlineSeconds is at least 1"
    managers = [patch["manager"] for patch in spec.get("runtimePatches", ())]
    if len(set(managers)) < len(managers):
        yield "each runtime patch has a manager of its own"


def _stateful_set_problems(body: Object) -> Iterator[str]:
    spec, name = body["spec"], str(body["metadata"]["name"])
    template = spec["template"]
    if name != RUN and len(name) > MAX_STATEFULSET_NAME:
        yield f"a StatefulSet's name has at most {MAX_STATEFULSET_NAME} characters: its pods carry it in a label"
    labels = template["metadata"]["labels"]
    if not spec["selector"]["matchLabels"].items() <= labels.items():
        yield "the selector does not match the template's labels"
    if template["spec"].get("restartPolicy", "Always") != "Always":
        yield "a StatefulSet's pods are always started again: restartPolicy Always"
    if "activeDeadlineSeconds" in template["spec"]:
        yield "a StatefulSet's pods may have no activeDeadlineSeconds"


def _pod_problems(pod: Object) -> Iterator[str]:
    volumes = [volume["name"] for volume in pod.get("volumes", ())]
    if len(set(volumes)) < len(volumes):
        yield "two volumes have the same name"
    for container in pod["containers"]:
        paths = [mount["mountPath"] for mount in container.get("volumeMounts", ())]
        for path in sorted({path for path in paths if paths.count(path) > 1}):
            yield f"two volumes are mounted at {path}"
        for mount in container.get("volumeMounts", ()):
            if mount["name"] not in volumes:
                yield f"no volume is called {mount['name']}"
            if ":" in mount["mountPath"]:
                yield f"{mount['mountPath']} has a colon, which no path of a mount may have"
        names = [variable["name"] for variable in container.get("env", ())]
        if len(set(names)) < len(names):
            yield "a variable is set twice"
        resources = container.get("resources", {})
        for name, amount in resources.get("limits", {}).items():
            asked = resources.get("requests", {}).get(name, amount)
            if "/" in name and asked != amount:
                yield f"{name}: what is asked for and its limit must be equal"


ENTRY = "targets"
_RESERVED_LABELS = ("headway.", "app.kubernetes.io/managed-by")
_RESERVED_PATHS = (*pod.WRITABLE_DIRS.values(), WORK, SECRETS, "/dev/shm")


def problems(job: Job, options: Options) -> Iterator[Problem]:
    yield from _image_problems(job)
    yield from _url_problems(job)
    yield from _mount_problems(job)
    yield from _secret_problems(job)
    yield from _accelerator_problems(job, options)
    yield from _option_problems(options)


def notes(job: Job, ranks: int, options: Options) -> Iterator[str]:
    if not job.image.uri:
        yield "the image must be in its registry before the run starts: headway image --push"
    else:
        yield f"{job.image.uri} must have Headway installed: the planned code and Headway are fetched when a pod starts"
    if job.budget.hours is not None and job.max_wait is None:
        yield "max_wait is not given: the cluster's own limit leaves a day for waiting"
    if options.engine == "trainjob":
        release = options.trainer or pod.NEWEST
        unsupported = trainjob.unsupported_fields(options, release)
        if unsupported:
            yield f"TrainJob {release} cannot set: {'; '.join(unsupported)}"
        if options.trainer is None:
            yield f"rendered for Kubeflow Trainer {release}; the run is rendered for the release it finds installed"
        yield "a pod that is taken away counts against the backoffLimit of its runtime: headway resume starts it again"
    if options.engine == "trainjob" and options.service_account and not options.token:
        patch = f"kubectl -n {options.namespace} patch serviceaccount {options.service_account} -p"
        yield f"a TrainJob cannot withhold its account's token: {patch} '{{\"automountServiceAccountToken\": false}}'"
    yield from _node_notes(job, options)
    for name, secret in job.secrets.items():
        if secret.as_ == "file" and "CREDENTIALS" in name:
            yield f"secrets.{name}: a key file works; a service_account with Workload Identity needs none"


def _node_notes(job: Job, options: Options) -> Iterator[str]:
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


def _image_problems(job: Job) -> Iterator[Problem]:
    yield from reference.problems(dump(job)["image"], job.name)
    if job.image.uri is None and job.image.repository is None:
        what = "a cluster pulls its image from a registry, and the job names none"
        fix = f"image: {{repository: {reference.ARTIFACT_REGISTRY}}}, then headway image --push"
        yield Problem(what=what, where="image", fix=fix)
    if job.requirements and not job.image.uri:
        yield from requirements.problems(Path(job.root), job.requirements)


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


def _option_problems(options: Options) -> Iterator[Problem]:
    if not is_name(options.namespace):
        what = f"{options.namespace!r} cannot be a namespace"
        yield Problem(what=what, where=ENTRY, fix="namespace: lower case letters, digits and dashes, at most 63")
    for key in ("service_account", "priority", "runtime"):
        value = getattr(options, key)
        if value is not None and not is_subdomain(value):
            yield Problem(what=f"{value!r} cannot be a {key}", where=ENTRY, fix=f"mend `{key}`")
    for key, mapping in (("labels", options.labels), ("node_selector", options.node_selector)):
        for name, value in mapping.items():
            wrong = label_problem(str(name), str(value))
            if key == "labels" and str(name).startswith(_RESERVED_LABELS):
                wrong = f"{name} is set by Headway"
            if wrong:
                yield Problem(what=f"{key}: {wrong}", where=ENTRY, fix=f"mend `{key}`")
    for toleration in options.tolerations:
        unknown = sorted(set(toleration) - {"key", "operator", "value", "effect", "tolerationSeconds"})
        if unknown:
            what = f"a toleration has no {unknown[0]!r}"
            yield Problem(what=what, where=ENTRY, fix="tolerations: [{key: …, operator: Exists, effect: NoSchedule}]")
