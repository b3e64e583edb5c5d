"""The worker's pod spec, the same for every engine, with GKE's node labels and the run's time limits. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headway.core.plan import RUN, Limits
from headway.packaging import build, image_reuse, supervisor_image
from headway.packaging.dockerfile import image_of_plan as dockerfile_of_plan
from headway.packaging.supervisor_runtime import PYTHON_VARIABLE, RUNTIME_DIR, start_words
from headway.rundir.status import END_RECORD_S
from headway.storage import local_path
from headway.storage.secrets import parse
from headway.targets.kubernetes.options import CODE, HOME, KIND, NODE, SECRETS, WHEEL, WORK, Options, Trainer, url_of

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.packaging.dockerfile import AnyImage
    from headway.spec import Job


# GKE's labels for accelerators and spot nodes, as of 2026


GPU = "nvidia.com/gpu"
ACCELERATOR, SPOT, MACHINE = (
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-spot",
    "node.kubernetes.io/instance-type",
)
SPOT_GRACE_S = 15.0  # GKE's limit for user pods on spot nodes, whatever they request

ACCELERATORS = {
    "T4": "nvidia-tesla-t4",
    "V100": "nvidia-tesla-v100",
    "P100": "nvidia-tesla-p100",
    "P4": "nvidia-tesla-p4",
    "A100": "nvidia-tesla-a100",
    "A100-80GB": "nvidia-a100-80gb",
    "L4": "nvidia-l4",
    "H100": "nvidia-h100-80gb",
    "H100-MEGA": "nvidia-h100-mega-80gb",
    "H200": "nvidia-h200-141gb",
    "B200": "nvidia-b200",
}


def node_scheduling(resources: Mapping[str, Any], platform: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the node selector and the tolerations."""
    selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    if resources.get("machine"):
        selector[MACHINE] = str(resources["machine"])
    if resources.get("accelerator"):
        tolerations.append({"key": GPU, "operator": "Exists", "effect": "NoSchedule"})
        label = accelerator(str(resources["accelerator"]["kind"]))
        if platform == "gke" and label is not None:
            selector[ACCELERATOR] = label
    if resources.get("spot") and platform == "gke":
        selector[SPOT] = "true"
        tolerations.append({"key": SPOT, "operator": "Equal", "value": "true", "effect": "NoSchedule"})
    return selector, tolerations


def accelerator(kind: str) -> str | None:
    """Return GKE's label value for an accelerator, given its short name or the label value itself."""
    known = {**ACCELERATORS, **{label.upper(): label for label in ACCELERATORS.values()}}
    return known.get(kind.upper().replace("_", "-"))


# Time limits, in seconds: the backstop behind the budget, by engine


DEFAULT_WAIT_S = 24 * 3600.0  # in the queue, if the job does not say: the cluster's own limits include waiting
MARGIN_S = 300.0  # for the final records and clock skew: the supervisor's own timer fires first
NEWEST: Trainer = "2.3"
WITH_DEADLINE = ("2.2", "2.3")  # releases whose TrainJob has activeDeadlineSeconds


def lifetime_s(budget_s: float | None, max_wait_s: float | None, grace_s: float, spent_s: float = 0.0) -> int | None:
    """Return the time from the first request until nothing of the run may be left. None: no limit."""
    if budget_s is None:
        return None
    left = max(0.0, budget_s - spent_s)
    wait = DEFAULT_WAIT_S if max_wait_s is None else max_wait_s
    return math.ceil(wait + left + grace_s + MARGIN_S)


def plan_lifetime_s(plan: Plan, spent_s: float = 0.0) -> int | None:
    limits = plan.limits
    return lifetime_s(limits.budget_s, limits.max_wait_s, limits.grace_s, spent_s)


def limits(job: Job, options: Options) -> Limits:
    """Return the durations that apply in a cluster, and the cluster's own limit behind the budget."""
    budget_s = None if job.budget.hours is None else job.budget.hours * 3600
    spot = job.resources.spot and options.platform == "gke"
    grace = min(options.grace, SPOT_GRACE_S) if spot else options.grace
    seconds = lifetime_s(budget_s, job.max_wait, grace)
    return Limits(budget_s=budget_s, max_wait_s=job.max_wait, grace_s=grace, second=_backstop(options, seconds))


def _backstop(options: Options, seconds: int | None) -> str:
    if seconds is None:
        return "none: without a budget the run has no time limit"
    if options.engine == "pytorchjob":
        return f"the PyTorchJob's activeDeadlineSeconds of {seconds}, in which waiting counts"
    if options.engine == "trainjob":
        release = options.trainer or NEWEST
        if release in WITH_DEADLINE:
            return f"the TrainJob's activeDeadlineSeconds of {seconds}, in which waiting counts"
        return f"none in the cluster: TrainJob {release} has no deadline; only the supervisor's timer ends the run"
    return f"the reaper's timer of {seconds} s, and behind that its Job's activeDeadlineSeconds"


Object = dict[str, Any]
ENTRY = "headway.targets.kubernetes.entry"
SUPERVISOR, REAPER = "headway.runtime.worker", "headway.targets.kubernetes.reaper"
CLIENT_SIDE_KINDS = ("env", "file")  # secrets that only the client can resolve: it sends the values
WRITABLE_DIRS = {"code": CODE, "home": HOME, "node": NODE, "tmp": "/tmp", "wheel": WHEEL}  # writable; the image is not


def pod_spec(plan: Plan, options: Options, *, container: str, restart: str | None, env: Mapping[str, str]) -> Object:
    """Build the pod spec. `env` holds the engine's variables; `restart` is None if the engine decides."""
    spec: Object = {
        "automountServiceAccountToken": options.token,
        "enableServiceLinks": False,  # ranks have no use for variables of unrelated services
        "securityContext": security(options),
        "terminationGracePeriodSeconds": grace_period_s(plan),
        "containers": [worker(plan, options, container, env)],
        "volumes": volumes(plan, options),
        **placement(plan, options),
    }
    if plan.code.runtime:
        spec["initContainers"] = [_init_container(plan, options)]
    if restart is not None:
        spec["restartPolicy"] = restart
    if options.priority:
        spec["priorityClassName"] = options.priority
    return spec


def worker(plan: Plan, options: Options, name: str, env: Mapping[str, str]) -> Object:
    return {
        "name": name,
        "image": image(plan),
        "command": command(plan, options, SUPERVISOR, "--run", url_of(plan)),
        "env": environment(plan, {**fixed_variables(plan), **python_variable(plan, options), **env}),
        "resources": resources(plan),
        "securityContext": container_security(),
        "volumeMounts": mounts(plan),
    }


def _init_container(plan: Plan, options: Options) -> Object:
    """Build the container that copies the supervisor with its interpreter into the pod, and fetches the code."""
    fetch = ("--from", f"{plan.job['outputs']}/code", "--code", plan.code.sha256)
    copies = ("--copy", f"{supervisor_image.ROOT}={RUNTIME_DIR}", "--copy", f"{supervisor_image.WHEEL}={WHEEL}")
    return {
        "name": "supervisor",
        "image": supervisor_image_name(plan, options),
        "command": supervisor_words(ENTRY, *fetch, *copies),
        "env": environment(plan, fixed_variables(plan)),
        "securityContext": container_security(),
        "volumeMounts": mounts(plan),
    }


def supervisor_words(module: str, *words: str) -> list[str]:
    """Return the command that runs a module of Headway in the supervisor's own image."""
    return start_words(module, *words, root=supervisor_image.ROOT, wheel=supervisor_image.WHEEL)


def python_variable(plan: Plan, options: Options) -> dict[str, str]:
    """Return the variable that names the image's interpreter to a supervisor that runs on its own."""
    return {PYTHON_VARIABLE: options.python} if plan.code.runtime else {}


def image(plan: Plan) -> str:
    """Return the job's ready image, the pushed digest, or the content-addressed tag that a push will create.

    Pods fetch their code, so a pushed image with the same dependencies serves as well: a change of code needs no build.
    """
    own = dockerfile_of_plan(plan)
    exact = build.reference(plan, own)
    return exact if exact != own.name else image_reuse.reusable(own) or exact


def image_to_push(plan: Plan) -> AnyImage | None:
    """Return the image that pods need and that this machine has not pushed; None for a ready one."""
    own = dockerfile_of_plan(plan)
    return own if own.repository is not None and image(plan) == own.name else None


def supervisor_image_name(plan: Plan, options: Options) -> str:
    """Return the name of the image from which pods get their supervisor; empty if they need none."""
    return supervisor_image.image_name(str(options.supervisor), plan.code) if plan.code.runtime else ""


def command(plan: Plan, options: Options, module: str, *words: str) -> list[str]:
    """Return the command by which the image's Headway fetches the planned code and Headway, then execs `module`.

    With a runtime, an init container has brought all of them.
    """
    code = plan.code
    if code.runtime:
        return start_words(module, *words)
    sent = ("--from", f"{plan.job['outputs']}/code", "--code", code.sha256)
    wheel = ("--wheel", code.wheel, "--wheel-sha256", code.wheel_sha256)
    return [options.python, "-m", ENTRY, *sent, *wheel, "--", module, *words]


def fixed_variables(plan: Plan) -> dict[str, str]:
    return {
        "HEADWAY_RUN": RUN,
        "HEADWAY_RUN_URL": url_of(plan),
        "HEADWAY_TARGET": KIND,
        "HEADWAY_CODE_DIR": CODE,
        "HEADWAY_SPOOL": f"{NODE}/spool",
        "HEADWAY_ECHO": "1",  # copy the ranks' output to the pod's log
        "HEADWAY_WORK_DIR": WORK,
    }


def environment(plan: Plan, added: Mapping[str, str]) -> list[Object]:
    """Return the job's variables, ours, and references to Secrets of the cluster. Never a secret's value."""
    # The planned Headway takes precedence over the image's; the job's own PYTHONPATH comes after it.
    path = ":".join(filter(None, (WHEEL, str(plan.job.get("env", {}).get("PYTHONPATH", "")))))
    fixed = {"HOME": HOME, "USER": "headway", "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    if plan.code.runtime:  # the project's interpreter may be too old for our packages
        del fixed["PYTHONPATH"]
    plain = {**{name: str(value) for name, value in plan.job.get("env", {}).items()}, **fixed, **added}
    if _secret_volume(plan):
        plain["HEADWAY_SECRETS_DIR"] = SECRETS
    found: list[Object] = [{"name": name, "value": value} for name, value in sorted(plain.items())]
    for name, secret in sorted(plan.job.get("secrets", {}).items()):
        there = secret_key_ref(secret)
        if there is not None and not _file_name(secret):
            found.append({"name": name, "valueFrom": {"secretKeyRef": {"name": there[0], "key": there[1]}}})
    return found


def client_secrets(plan: Plan) -> dict[str, str]:
    """Return the secrets whose values the client must send, as variable -> reference."""
    references = {name: str(secret["ref"]) for name, secret in plan.job.get("secrets", {}).items()}
    return {
        name: reference for name, reference in sorted(references.items()) if parse(reference).kind in CLIENT_SIDE_KINDS
    }


def secret_key_ref(secret: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return name and key of a Secret that is already in the cluster; None for other references."""
    reference = parse(str(secret["ref"]))
    if reference.kind != "k8s":
        return None
    name, _, key = reference.name.partition("/")
    return name, key


def resources(plan: Plan) -> Object:
    """Request CPUs without a limit, and memory with one: a run that outgrows it is killed, not its neighbours."""
    requested = plan.job.get("resources", {})
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if requested.get("cpus"):
        requests["cpu"] = str(requested["cpus"])
    if requested.get("memory"):
        requests["memory"] = limits["memory"] = str(requested["memory"])
    if requested.get("disk"):
        requests["ephemeral-storage"] = str(requested["disk"])
    if requested.get("accelerator"):
        requests[GPU] = limits[GPU] = str(requested["accelerator"]["count"])
    return {name: amounts for name, amounts in (("limits", limits), ("requests", requests)) if amounts}


def security(options: Options) -> Object:
    """Run as a non-root user, with volumes owned by the pod's group."""
    return {
        "runAsNonRoot": True,
        "runAsUser": options.user,
        "runAsGroup": options.user,
        "fsGroup": options.user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Object:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def placement(plan: Plan, options: Options) -> Object:
    """Return the pod's service account, pull secrets, node selector and tolerations."""
    selector, tolerations = node_scheduling(plan.job.get("resources", {}), options.platform)
    scheduling = {
        "serviceAccountName": options.service_account,
        "imagePullSecrets": [{"name": name} for name in options.pull_secrets],
        "nodeSelector": {**selector, **options.node_selector},
        "tolerations": [*tolerations, *(dict(each) for each in options.tolerations)],
    }
    return {key: value for key, value in scheduling.items() if value}


def grace_period_s(plan: Plan) -> int:
    """Return a grace period long enough that a plain `kubectl delete` waits for the checkpoint."""
    return math.ceil(plan.limits.grace_s + END_RECORD_S)


def writable_dirs(plan: Plan) -> dict[str, str]:
    return {**WRITABLE_DIRS, "runtime": RUNTIME_DIR} if plan.code.runtime else WRITABLE_DIRS


def volumes(plan: Plan, options: Options) -> list[Object]:
    found: list[Object] = [{"name": name, "emptyDir": {}} for name in sorted(writable_dirs(plan))]
    found.append({"name": "work", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}})
    found.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(options.shm)}})
    if _secret_volume(plan):
        found.append({"name": "secrets", "projected": {"defaultMode": 0o440, "sources": list(_secret_variables(plan))}})
    if _default_cache(plan):
        found.append({"name": "cache", "emptyDir": _cache_size(plan)})
    found += [_volume(number, mount) for number, mount in enumerate(plan.job.get("mounts", ()))]
    return found


def mounts(plan: Plan) -> list[Object]:
    found: list[Object] = [{"name": name, "mountPath": path} for name, path in sorted(writable_dirs(plan).items())]
    found += [{"name": "work", "mountPath": WORK}, {"name": "shm", "mountPath": "/dev/shm"}]
    if _secret_volume(plan):
        found.append({"name": "secrets", "mountPath": SECRETS, "readOnly": True})
    if _default_cache(plan):
        found.append({"name": "cache", "mountPath": plan.job["cache"]["dir"]})
    for number, mount in enumerate(plan.job.get("mounts", ())):
        wanted: Object = {"name": f"mount-{number}", "mountPath": mount["at"]}
        found.append({**wanted, "readOnly": True} if mount.get("read_only") else wanted)
    return found


def _secret_volume(plan: Plan) -> bool:
    """Return whether any secret is a file in the secrets volume."""
    return bool(client_secrets(plan)) or any(True for _ in _secret_files(plan))


def _secret_files(plan: Plan) -> Iterator[tuple[str, tuple[str, str]]]:
    for name, secret in sorted(plan.job.get("secrets", {}).items()):
        there = secret_key_ref(secret)
        if there is not None and _file_name(secret):
            yield name, there


def _secret_variables(plan: Plan) -> Iterator[Object]:
    """Yield the projected sources: one folder with one file per variable, whichever Secret holds it."""
    if client_secrets(plan):
        yield {"secret": {"name": RUN}}
    for variable, (name, key) in _secret_files(plan):
        yield {"secret": {"name": name, "items": [{"key": key, "path": variable}]}}


def _file_name(secret: Mapping[str, Any]) -> bool:
    return str(secret.get("as", secret.get("as_"))) == "file"


def _default_cache(plan: Plan) -> bool:
    """Return whether the cache folder needs an emptyDir: it is under neither a mount nor the home folder."""
    folder = plan.job.get("cache", {}).get("dir")
    if not folder or str(folder).startswith(HOME):
        return False
    return covering_mount(plan.job, str(folder)) is None


def _cache_size(plan: Plan) -> Object:
    size = plan.job.get("cache", {}).get("size")
    return {"sizeLimit": str(size)} if size else {}


def covering_mount(job: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    """Return the entry of `mounts` that contains a path; None if there is none."""
    folder = local_path(path)
    for mount in job.get("mounts", ()):
        if folder is not None and folder.is_relative_to(mount["at"]):
            return dict(mount)
    return None


def _volume(number: int, mount: Mapping[str, Any]) -> Object:
    """Build the volume for one entry of the job's `mounts`."""
    read_only = bool(mount.get("read_only"))
    if mount.get("pvc"):
        claim: Object = {"claimName": mount["pvc"]}
        return {"name": f"mount-{number}", "persistentVolumeClaim": {**claim, "readOnly": True} if read_only else claim}
    if mount.get("nfs"):
        server, _, export = str(mount["nfs"]).partition(":")
        share: Object = {"server": server, "path": export}
        return {"name": f"mount-{number}", "nfs": {**share, "readOnly": True} if read_only else share}
    return {"name": f"mount-{number}", "hostPath": {"path": mount["path"], "type": "Directory"}}
