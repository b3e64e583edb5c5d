"""Status of a run in a cluster: its pods, events, container logs and console links, and why pods do not run yet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from headway.core.errors import WORKER_RESTART
from headway.core.plan import RUN
from headway.core.types import Handle, State, Status
from headway.rundir.layout import STOP
from headway.rundir.status import FINAL_STATES, StatusInputs, folder_of, next_start_clause
from headway.targets.kubernetes import client, manifests, pytorchjob, trainjob
from headway.targets.kubernetes.client import Api, ApiError, Forbidden, NotFound, Object
from headway.targets.kubernetes.options import FOLDER_LABEL, PART_LABEL, URL_ANNOTATION, Options, folder_hash, selector

# Console links, made without a request


CONSOLE = "https://console.cloud.google.com"


def links(handle: Handle, options: Options, context: str) -> dict[str, str]:
    """Return the links to Cloud Logging, with the filter filled in, and to the workload's page; none outside GKE."""
    project, location, cluster = gke_cluster(options, context)
    if not project or options.platform != "gke":
        return {}
    filters = {
        "resource.type": "k8s_container",
        "resource.labels.namespace_name": options.namespace,
        'labels."k8s-pod/headway_run"': handle.run,
    }
    if cluster:
        filters["resource.labels.cluster_name"] = cluster
    # Cloud Logging writes the dots of a pod's labels as underscores.
    text = "\n".join(f'{key}="{value}"' for key, value in filters.items())
    pages = {"logs": f"{CONSOLE}/logs/query;query={quote(text, safe='')}?project={project}"}
    if location and cluster and options.engine == "statefulset":
        page = f"statefulset/{location}/{cluster}/{options.namespace}/{handle.run}"
        pages["workload"] = f"{CONSOLE}/kubernetes/{page}?project={project}"
    return pages


def gke_cluster(options: Options, context: str) -> tuple[str, str, str]:
    """Return project, location and cluster from the target's options, or else from gcloud's name for the context."""
    prefix, *parts = context.split("_")
    explicit = parts if prefix == "gke" and len(parts) == 3 else ["", "", ""]
    return options.project or explicit[0], options.location or explicit[1], options.cluster or explicit[2]


def get_credentials(options: Options, context: str = "") -> str:
    """Return the gcloud command that adds the cluster to the kubeconfig."""
    project, location, cluster = gke_cluster(options, context)
    where = f"--location {location or 'LOCATION'} --project {project or 'PROJECT'}"
    return f"gcloud container clusters get-credentials {cluster or 'CLUSTER'} {where}"


def renew_credentials(options: Options, context: str = "") -> str:
    """Return the command that renews access to the cluster: Google's for GKE, else one that lets kubectl log in."""
    if options.platform == "gke" and all(gke_cluster(options, context)):
        return get_credentials(options, context)
    return f"kubectl{f' --context {context}' if context else ''} get --raw /version   (log in as for kubectl)"


_TAIL_LINES = 5
_MAX_LINES = 500
_POD = r"(?:reaper-\w+|(?:(?:master|worker|node-0)-)?\d+(?:-\w+)?)"  # the part of a pod's name after the run's name


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of a run, as listed by the API server."""

    name: str
    phase: str  # Pending, Running, Succeeded, Failed, Unknown
    problem: str  # why it does not run, as the cluster reports it; empty if it runs
    exit: str  # how its container last ended
    terminating: bool
    restarts: int
    node: str

    @property
    def live(self) -> bool:
        return self.phase in ("Pending", "Running", "Unknown")

    @property
    def running(self) -> bool:
        return self.phase == "Running" and not self.problem

    def __str__(self) -> str:
        where = f" on {self.node}" if self.node else ""
        again = f", restarted {self.restarts} times" if self.restarts else ""
        return f"pod {self.name} is {'leaving' if self.terminating else self.phase.lower()}{where}{again}"


def workers(api: Api, options: Options, run: str, url: str) -> list[Pod]:
    """List the pods that train, in order, by our labels and by those that Kubeflow's operators set."""
    operator_label = f"{selector(run, url)},{PART_LABEL}=worker"
    selectors = {"pytorchjob": f"{pytorchjob.POD_LABEL}={run}", "trainjob": f"{trainjob.POD_LABEL}={run}"}
    found = {}
    for pod_selector in filter(None, (operator_label, selectors.get(options.engine))):
        for item in client.list_objects(api, "Pod", options.namespace, pod_selector):
            if _belongs_to_run(api, options, item, run, url):
                found[item["metadata"]["name"]] = pod_of(item)
    return [found[name] for name in sorted(found, key=_natural_order)]


def _belongs_to_run(api: Api, options: Options, item: Object, run: str, url: str) -> bool:
    """Return whether a pod belongs to this run folder, by its own label and annotation or else by its job's.

    Two folders may each hold a run of the same name.
    """
    annotated, folder = client.annotation(item, URL_ANNOTATION), client.label(item, FOLDER_LABEL)
    if annotated or folder:
        return annotated in ("", url) and folder in ("", folder_hash(url))
    kind = pytorchjob.KIND if options.engine == "pytorchjob" else trainjob.KIND
    job = client.read(api, kind, options.namespace, run)
    return job is None or client.annotation(job, URL_ANNOTATION) in ("", url)


def reaper(api: Api, options: Options, run: str, url: str) -> list[Pod]:
    """List the reaper's pods. The reaper scales the StatefulSet up, so whatever delays it delays the workers."""
    if options.engine != "statefulset":
        return []
    chosen = f"{selector(run, url)},{PART_LABEL}=reaper"
    return [pod_of(item) for item in client.list_objects(api, "Pod", options.namespace, chosen)]


def pod_of(item: Object) -> Pod:
    status, metadata = item.get("status") or {}, item["metadata"]
    containers = status.get("containerStatuses") or []
    ends = [_exit_text(each) for each in containers]
    return Pod(
        name=metadata["name"],
        phase=str(status.get("phase", "Unknown")),
        problem=_pod_problem(status, containers),
        exit=next(filter(None, ends), ""),
        terminating="deletionTimestamp" in metadata,
        restarts=sum(int(each.get("restartCount", 0)) for each in containers),
        node=str(item.get("spec", {}).get("nodeName") or ""),
    )


def cluster_events(api: Api, options: Options, run: str, url: str) -> list[str]:
    """Return warnings about a run and its pods, which a cluster keeps for an hour, and how existing pods ended."""
    pods = workers(api, options, run, url) or reaper(api, options, run, url)
    messages = events(api, options.namespace, [run, f"{run}-reaper", *(pod.name for pod in pods)], of_run=run)
    exits = [f"pod {pod.name}: {each}" for pod in pods for each in (pod.problem, pod.exit) if each]
    return [*messages, *exits]


def events(api: Api, namespace: str, names: Iterable[str], *, of_run: str = "", warnings: bool = True) -> list[str]:
    """Return distinct warnings about these objects, newest last; `of_run` adds those about its pods, deleted or not.

    With `warnings` False, all events: a node is added, an image is pulled, a container is started.
    """
    pods = re.compile(rf"{re.escape(of_run)}-{_POD}") if of_run else None
    kept = set(names)
    try:
        chosen = {"fieldSelector": "type=Warning"} if warnings else {}
        answer = api("GET", f"/api/v1/namespaces/{namespace}/events", query=chosen)
    except (Forbidden, NotFound):  # events are optional
        return []
    relevant = {id(item): str(item.get("involvedObject", {}).get("name")) for item in answer.get("items") or ()}
    items = [
        item
        for item in answer.get("items") or ()
        if relevant[id(item)] in kept or (pods is not None and pods.fullmatch(relevant[id(item)]))
    ]
    items.sort(key=_event_time)
    return list(dict.fromkeys(f"{item.get('reason')}: {str(item.get('message', '')).strip()}" for item in items))


def with_advice(trouble: str) -> str:
    """Shorten the cluster's message and add advice where its cause is known."""
    short = " ".join(trouble.split())[:300]
    for pattern, advice in _ADVICE:
        if re.search(pattern, trouble, re.IGNORECASE):
            return f"{short} ({advice})"
    return short


def log_tail(api: Api, namespace: str, pod: str, *, previous: bool = False) -> list[str]:
    """Return the last lines of a pod's container, or of the container before its last restart."""
    query = {"tailLines": str(_TAIL_LINES), **({"previous": "true"} if previous else {})}
    try:
        return list(api.lines(f"/api/v1/namespaces/{namespace}/pods/{pod}/log", query=query))
    except (NotFound, Forbidden):
        return []


def container_logs(api: Api, options: Options, run: str, url: str) -> Iterator[tuple[str, str, str]]:
    """Yield pod, time and text of each line that containers printed, starting with the one before the restart."""
    for pod in workers(api, options, run, url) or reaper(api, options, run, url):
        for previous in ("true", "false"):
            query = {"timestamps": "true", "tailLines": str(_MAX_LINES), "previous": previous}
            path = f"/api/v1/namespaces/{options.namespace}/pods/{pod.name}/log"
            try:
                for line in api.lines(path, query=query):
                    timestamp, _, text = line.partition(" ")
                    yield pod.name, timestamp, text
            except ApiError:  # no previous container, or not started yet
                continue


def _pod_problem(status: Object, containers: list[Object]) -> str:
    for each in containers:
        waiting = (each.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{condition.get('reason')}: {condition.get('message', '')}".rstrip(": ")
    if status.get("phase") == "Failed" and (status.get("reason") or status.get("message")):
        return f"{status.get('reason', 'Failed')}: {status.get('message', '')}".rstrip(": ")
    return ""


def _exit_text(container: Object) -> str:
    for state in (container.get("state") or {}, container.get("lastState") or {}):
        ended = state.get("terminated")
        if ended:
            why = f", {ended['reason']}" if ended.get("reason") not in (None, "Error", "Completed") else ""
            return f"ended with {ended.get('exitCode')}{why}"
    return ""


def _event_time(item: dict[str, Any]) -> str:
    return str(item.get("lastTimestamp") or item.get("eventTime") or item["metadata"].get("creationTimestamp") or "")


def _natural_order(name: str) -> list[Any]:
    """Sort key that orders worker-10 after worker-9, and the master before both."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]


_GKE = "gcloud container node-pools list shows what the cluster has"
_ADVICE = (
    (r"insufficient nvidia\.com/gpu", f"no node has that many free GPUs: {_GKE}; headway doctor checks the driver"),
    (r"didn't match (?:pod's )?node (?:affinity|selector)", f"no node has these labels: {_GKE}"),
    (r"had (?:untolerated )?taint", "all matching nodes are tainted: set `tolerations` in the target's entry"),
    (
        r"insufficient (?:cpu|memory|ephemeral-storage)",
        "no node has that much free: smaller `resources`, or more nodes",
    ),
    (r"exceeded quota", "the namespace's quota is used up: kubectl describe resourcequota"),
    (
        r"ErrImagePull|ImagePullBackOff|InvalidImageName",
        "is it pushed, and can the nodes pull it? headway image --push; `pull_secrets` for a private registry",
    ),
    (r"secret \"?[^ ]+\"? not found|couldn't find key", "kubectl get secrets, and fix the k8s:// reference"),
    (r"serviceaccount \"?[^ ]+\"? not found", "kubectl create serviceaccount, or fix `service_account`"),
    (r"persistentvolumeclaim \"?[^ ]+\"? not found", "kubectl get pvc, and fix `mounts`"),
    (r"priorityclass", "kubectl get priorityclasses, and fix `priority`"),
)


# Run status, from the run folder and the cluster


MAX_START_RESTARTS = 3  # restarts of a container before its first attempt after which the run counts as failed


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A run's workload and pods at one point in time."""

    workload: Object | None
    pods: list[Pod]
    reaper: list[Pod]  # only while there are no workers yet: it scales them up

    @property
    def terminating(self) -> bool:
        return self.workload is None or "deletionTimestamp" in self.workload["metadata"]

    @property
    def submitting(self) -> bool:
        """Whether the creation guard still owns it: its client has not finished submitting."""
        owners = (self.workload or {}).get("metadata", {}).get("ownerReferences") or ()
        return any(str(owner["name"]).endswith(manifests.GUARD_NAME.removeprefix(RUN)) for owner in owners)

    @property
    def final_condition(self) -> str:
        """The operator's final condition of its job; empty until it has one."""
        conditions = ((self.workload or {}).get("status") or {}).get("conditions") or ()
        for each in conditions:
            if each.get("type") in ("Succeeded", "Complete", "Failed") and each.get("status") == "True":
                details = ": ".join(filter(None, (each.get("reason"), each.get("message"))))
                return f"{each['type']}: {details}" if details else str(each["type"])
        return ""

    @property
    def live(self) -> bool:
        return (not self.terminating and not self.final_condition) or any(pod.live for pod in self.pods)


def read_cluster(api: Api, options: Options, handle: Handle) -> ClusterView:
    workload = client.read(api, manifests.WORKLOAD[options.engine], options.namespace, handle.run)
    if workload is not None and client.annotation(workload, URL_ANNOTATION) != handle.url:
        workload = None  # another folder's run of the same name
    pods = workers(api, options, handle.run, handle.url)
    no_pods_yet = not pods and workload is not None
    return ClusterView(workload, pods, reaper(api, options, handle.run, handle.url) if no_pods_yet else [])


def status(
    api: Api, options: Options, handle: Handle, view: ClusterView, inputs: StatusInputs, *, submitting: bool
) -> Status:
    """Combine folder and cluster: the end recorded in the folder counts, unless the cluster will restart the run."""
    end = inputs.end
    if end is not None and (end.state in FINAL_STATES or not _will_restart(handle, view)):
        return end
    if view.live:
        return _live_status(api, options, handle, view, inputs)
    if submitting:
        return Status(state=State.PENDING, reason="is being submitted")
    return _lost_status(api, options, view, inputs)


def _will_restart(handle: Handle, view: ClusterView) -> bool:
    """Return whether the cluster will restart a stopped run, which then has not ended, unless a stop was requested."""
    if view.terminating or view.final_condition:
        return False
    return folder_of(handle).read_json(STOP) is None


def _live_status(api: Api, options: Options, handle: Handle, view: ClusterView, inputs: StatusInputs) -> Status:
    running = [pod for pod in view.pods if pod.running and not pod.terminating]
    if inputs.started and inputs.end is None and running:
        waiting = next((pod for pod in view.pods if pod.problem and not pod.terminating), None)
        reason = f"pod {waiting.name}: {with_advice(waiting.problem)}" if waiting else _pods_text(view.pods)
        return Status(state=State.RUNNING, reason=reason)
    if not inputs.started:
        start_failure = _start_failure(api, options, view)
        if start_failure:
            return Status(state=State.FAILED, reason=start_failure, exit_code=1)
    reason = _waiting_reason(api, options, handle, view)
    restart = next_start_clause(handle, started=inputs.started)
    return Status(state=State.PENDING, reason=f"{reason}{restart}")


def _waiting_reason(api: Api, options: Options, handle: Handle, view: ClusterView) -> str:
    """Explain why nothing trains yet, by the pods' own state or the events about pods that cannot be created."""
    pods = view.pods or view.reaper
    for pod in pods:
        if pod.problem:
            return f"pod {pod.name}: {with_advice(pod.problem)}{_last_output(api, options, pod)}"
    names = [handle.run, f"{handle.run}-reaper", *(pod.name for pod in pods)]
    warnings = events(api, options.namespace, names) if not any(pod.running for pod in pods) else []
    if warnings:
        return with_advice(warnings[-1])
    if view.submitting:
        return "the client has not finished submitting it; if it never does, Kubernetes deletes it after ten minutes"
    return _pods_text(pods) or "no pod has been created yet"


def _start_failure(api: Api, options: Options, view: ClusterView) -> str:
    """Return why the run will never start: a container that keeps exiting before its supervisor begins an attempt."""
    for pod in view.pods or view.reaper:
        if pod.restarts >= MAX_START_RESTARTS and pod.problem and pod.exit != f"ended with {WORKER_RESTART}":
            last_output = _last_output(api, options, pod)
            return f"pod {pod.name} failed before the first attempt: {pod.exit} {pod.restarts} times{last_output}"
    return ""


def _lost_status(api: Api, options: Options, view: ClusterView, inputs: StatusInputs) -> Status:
    ended = [pod for pod in view.pods if pod.exit or pod.problem]
    last_output = next((f"; pod {pod.name} {pod.exit}{_last_output(api, options, pod)}" for pod in ended), "")
    if view.final_condition:
        if not inputs.started and view.final_condition.startswith("Failed"):
            return Status(state=State.FAILED, reason=f"{view.final_condition}{last_output}", exit_code=1)
        return Status(state=State.LOST, reason=f"{view.final_condition}{last_output}")
    if view.pods:
        return Status(state=State.LOST, reason=f"its pods have ended without recording an exit status{last_output}")
    gone = (
        "its pods no longer exist, and no exit status was recorded"
        if inputs.started
        else "none of its objects are in the cluster"
    )
    return Status(state=State.LOST, reason=gone)


def _last_output(api: Api, options: Options, pod: Pod) -> str:
    """Return the last line a container printed before it ended; after a restart, that of the previous container."""
    if not pod.exit:
        return ""
    lines = log_tail(api, options.namespace, pod.name, previous=pod.restarts > 0 and pod.live)
    last_line = next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
    return f"; last output: {last_line}" if last_line else ""


def _pods_text(pods: list[Pod]) -> str:
    shown = ", ".join(map(str, pods[:3]))
    return shown + (f" and {len(pods) - 3} more" if len(pods) > 3 else "")
