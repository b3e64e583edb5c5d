"""A run's pods as the cluster shows them, and why they do not run yet, in words that say what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from headway.targets.kubernetes import kinds, pytorchjob, trainjob
from headway.targets.kubernetes.api import Api, Forbidden, Gone, Object, Refusal
from headway.targets.kubernetes.names import FOLDER_LABEL, PART_LABEL, URL_ANNOTATION, folder_hash, selector
from headway.targets.kubernetes.options import Options

_LAST_LINES = 5
_MOST_LINES = 500
_POD = r"(?:reaper-\w+|(?:(?:master|worker|node-0)-)?\d+(?:-\w+)?)"  # how the names of a run's pods go on


@dataclass(frozen=True, slots=True)
class Pod:
    """One worker as it was seen."""

    name: str
    phase: str  # Pending, Running, Succeeded, Failed, Unknown
    trouble: str  # why it does not run, in the cluster's words; empty where it does
    ended: str  # how its container last ended
    leaving: bool
    restarts: int
    node: str

    @property
    def live(self) -> bool:
        return self.phase in ("Pending", "Running", "Unknown")

    @property
    def running(self) -> bool:
        return self.phase == "Running" and not self.trouble

    def __str__(self) -> str:
        where = f" on {self.node}" if self.node else ""
        again = f", restarted {self.restarts} times" if self.restarts else ""
        return f"pod {self.name} is {'leaving' if self.leaving else self.phase.lower()}{where}{again}"


def workers(api: Api, options: Options, run: str, url: str) -> list[Pod]:
    """The pods that train, in order. Kubeflow's operators label theirs themselves."""
    ours = f"{selector(run, url)},{PART_LABEL}=worker"
    selectors = {"pytorchjob": f"{pytorchjob.POD_LABEL}={run}", "trainjob": f"{trainjob.POD_LABEL}={run}"}
    found = {}
    for chosen in filter(None, (ours, selectors.get(options.engine))):
        for item in kinds.listed(api, "Pod", options.namespace, chosen):
            if _is_of(api, options, item, run, url):
                found[item["metadata"]["name"]] = pod_of(item)
    return [found[name] for name in sorted(found, key=_in_order)]


def _is_of(api: Api, options: Options, item: Object, run: str, url: str) -> bool:
    """Whether a pod is this folder's: two folders may each hold a run of one name. By its marks, or its job's."""
    marked, folder = kinds.annotation(item, URL_ANNOTATION), kinds.label(item, FOLDER_LABEL)
    if marked or folder:
        return marked in ("", url) and folder in ("", folder_hash(url))
    kind = pytorchjob.KIND if options.engine == "pytorchjob" else trainjob.KIND
    job = kinds.read(api, kind, options.namespace, run)
    return job is None or kinds.annotation(job, URL_ANNOTATION) in ("", url)


def reaper(api: Api, options: Options, run: str, url: str) -> list[Pod]:
    """The pod that calls the workers of a set: while there are none, what keeps it keeps them."""
    if options.engine != "statefulset":
        return []
    chosen = f"{selector(run, url)},{PART_LABEL}=reaper"
    return [pod_of(item) for item in kinds.listed(api, "Pod", options.namespace, chosen)]


def pod_of(item: Object) -> Pod:
    status, metadata = item.get("status") or {}, item["metadata"]
    containers = status.get("containerStatuses") or []
    ends = [_end(each) for each in containers]
    return Pod(
        name=metadata["name"],
        phase=str(status.get("phase", "Unknown")),
        trouble=_trouble(status, containers),
        ended=next(filter(None, ends), ""),
        leaving="deletionTimestamp" in metadata,
        restarts=sum(int(each.get("restartCount", 0)) for each in containers),
        node=str(item.get("spec", {}).get("nodeName") or ""),
    )


def own_account(api: Api, options: Options, run: str, url: str) -> list[str]:
    """Warnings about a run and its pods, which a cluster remembers for an hour, and how pods that are there ended."""
    pods = workers(api, options, run, url) or reaper(api, options, run, url)
    said = events(api, options.namespace, [run, f"{run}-reaper", *(pod.name for pod in pods)], of_run=run)
    ends = [f"pod {pod.name}: {each}" for pod in pods for each in (pod.trouble, pod.ended) if each]
    return [*said, *ends]


def events(api: Api, namespace: str, names: Iterable[str], *, of_run: str = "") -> list[str]:
    """Warnings about these objects, the newest last, each once. With `of_run` about its pods too, gone or not."""
    pods = re.compile(rf"{re.escape(of_run)}-{_POD}") if of_run else None
    wanted = set(names)
    try:
        answer = api("GET", f"/api/v1/namespaces/{namespace}/events", query={"fieldSelector": "type=Warning"})
    except (Forbidden, Gone):  # a nicety is missing, not the answer
        return []
    about = {id(item): str(item.get("involvedObject", {}).get("name")) for item in answer.get("items") or ()}
    items = [
        item
        for item in answer.get("items") or ()
        if about[id(item)] in wanted or (pods is not None and pods.fullmatch(about[id(item)]))
    ]
    items.sort(key=_moment)
    return list(dict.fromkeys(f"{item.get('reason')}: {str(item.get('message', '')).strip()}" for item in items))


def explained(trouble: str) -> str:
    """The cluster's words, shortened, and what to do where we know."""
    short = " ".join(trouble.split())[:300]
    for pattern, advice in _KNOWN:
        if re.search(pattern, trouble, re.IGNORECASE):
            return f"{short} ({advice})"
    return short


def log_tail(api: Api, namespace: str, pod: str, *, previous: bool = False) -> list[str]:
    """The last lines that a pod's container printed: of the one that runs, or of the one before it."""
    query = {"tailLines": str(_LAST_LINES), **({"previous": "true"} if previous else {})}
    try:
        return list(api.lines(f"/api/v1/namespaces/{namespace}/pods/{pod}/log", query=query))
    except (Gone, Forbidden):
        return []


def own_words(api: Api, options: Options, run: str, url: str) -> Iterator[tuple[str, str, str]]:
    """Pod, time and line of what containers printed themselves, the one before a restart first."""
    for pod in workers(api, options, run, url) or reaper(api, options, run, url):
        for previous in ("true", "false"):
            query = {"timestamps": "true", "tailLines": str(_MOST_LINES), "previous": previous}
            path = f"/api/v1/namespaces/{options.namespace}/pods/{pod.name}/log"
            try:
                for line in api.lines(path, query=query):
                    moment, _, text = line.partition(" ")
                    yield pod.name, moment, text
            except Refusal:  # there was none before, or it has not begun: nothing was said
                continue


def _trouble(status: Object, containers: list[Object]) -> str:
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


def _end(container: Object) -> str:
    for state in (container.get("state") or {}, container.get("lastState") or {}):
        ended = state.get("terminated")
        if ended:
            why = f", {ended['reason']}" if ended.get("reason") not in (None, "Error", "Completed") else ""
            return f"ended with {ended.get('exitCode')}{why}"
    return ""


def _moment(item: dict[str, Any]) -> str:
    return str(item.get("lastTimestamp") or item.get("eventTime") or item["metadata"].get("creationTimestamp") or "")


def _in_order(name: str) -> list[Any]:
    """worker-10 after worker-9, and the master before both."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]


_GKE = "gcloud container node-pools list shows what the cluster has"
_KNOWN = (
    (r"insufficient nvidia\.com/gpu", f"no node has that many free GPUs: {_GKE}; headway doctor checks the driver"),
    (r"didn't match (?:pod's )?node (?:affinity|selector)", f"no node has these labels: {_GKE}"),
    (r"had (?:untolerated )?taint", "the nodes that would do are tainted: `tolerations` in the target's entry"),
    (
        r"insufficient (?:cpu|memory|ephemeral-storage)",
        "no node has that much free: smaller `resources`, or more nodes",
    ),
    (r"exceeded quota", "the namespace's quota is used up: kubectl describe resourcequota"),
    (
        r"ErrImagePull|ImagePullBackOff|InvalidImageName",
        "is it pushed, and may the nodes read it? headway image --push; `pull_secrets` for a private registry",
    ),
    (r"secret \"?[^ ]+\"? not found|couldn't find key", "kubectl get secrets, and mend the k8s:// reference"),
    (r"serviceaccount \"?[^ ]+\"? not found", "kubectl create serviceaccount, and mend `service_account`"),
    (r"persistentvolumeclaim \"?[^ ]+\"? not found", "kubectl get pvc, and mend `mounts`"),
    (r"priorityclass", "kubectl get priorityclasses, and mend `priority`"),
)
