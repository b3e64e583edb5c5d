"""Check whether a cluster has room for a run's pods: on its nodes, beside other pods, and in the namespace's quota."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from headway.core.format import size
from headway.core.types import Finding
from headway.targets.kubernetes.client import Api, Forbidden, NotFound, Object
from headway.targets.kubernetes.options import Options

if TYPE_CHECKING:
    from headway.spec import Job

_SUFFIXES = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_UNFINISHED = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}


def findings(api: Api, options: Options, job: Job, nodes: Sequence[Object]) -> Iterator[Finding]:
    """Compare the CPUs and memory that the run's pods request with what is free."""
    requests = {"cpu": float(job.resources.cpus or 0), "memory": float(job.resources.memory or 0)}
    requests = {name: amount for name, amount in requests.items() if amount}
    if requests:
        yield from _node_findings(api, job, requests, nodes)
        yield from _quota_findings(api, options, job, requests)


def allocatable(node: Object, name: str) -> str:
    """Return how much of a resource a node has for pods, as Kubernetes writes it."""
    return str(((node.get("status") or {}).get("allocatable") or {}).get(name, "0"))


def number(quantity: str) -> float:
    """Parse a quantity of Kubernetes: `3920m`, `12Gi`."""
    text = str(quantity)
    suffix = text.lstrip("0123456789.")
    return float(text.removesuffix(suffix) or 0) * _SUFFIXES.get(suffix, 1.0)


def _node_findings(api: Api, job: Job, requests: Mapping[str, float], nodes: Sequence[Object]) -> Iterator[Finding]:
    asked = _display(requests)
    has = {name: [number(allocatable(node, name)) for node in nodes] for name in requests}
    if nodes and not any(all(has[name][k] >= requests[name] for name in requests) for k in range(len(nodes))):
        largest = _display({name: max(amounts) for name, amounts in has.items()})
        what = f"no node has room for a pod with {asked}: the largest has {largest} for pods"
        yield Finding("bad", what, "reduce resources.cpus or resources.memory, or add larger nodes")
        return
    used = _requested(api)
    if used is None:
        yield Finding("note", "may not look what other pods have requested")
        return
    free = sum(
        all(has[name][k] - used.get((_name(node), name), 0.0) >= requests[name] for name in requests)
        for k, node in enumerate(nodes)
    )
    what = f"{free} of {len(nodes)} nodes have {asked} free; the run needs {job.resources.nodes}"
    if free >= job.resources.nodes:
        yield Finding("ok", what)
    else:
        yield Finding("note", what, "kubectl top nodes; or let an autoscaler add nodes: the run waits up to max_wait")


def _requested(api: Api) -> dict[tuple[str, str], float] | None:
    """Sum what all pods have requested, by node and resource; None without the permission to look."""
    try:
        pods = api("GET", "/api/v1/pods", query=_UNFINISHED).get("items") or ()
    except (Forbidden, NotFound):
        return None
    sums: dict[tuple[str, str], float] = {}
    for pod in pods:
        node = str(pod["spec"].get("nodeName", ""))
        for container in pod["spec"]["containers"]:
            for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
                sums[node, name] = sums.get((node, name), 0.0) + number(amount)
    return sums


def _quota_findings(api: Api, options: Options, job: Job, requests: Mapping[str, float]) -> Iterator[Finding]:
    try:
        quotas = api("GET", f"/api/v1/namespaces/{options.namespace}/resourcequotas").get("items") or ()
    except (Forbidden, NotFound):
        return
    for quota in quotas:
        hard, used = (dict((quota.get("status") or {}).get(key) or {}) for key in ("hard", "used"))
        for name, amount in hard.items():
            wanted = requests.get(name.removeprefix("requests."), 0.0) * job.resources.nodes
            left = number(amount) - number(used.get(name, "0"))
            if wanted > left:
                what = f"quota {_name(quota)} leaves {left:g} of {name}, and the run requests {wanted:g}"
                yield Finding("bad", what, f"kubectl -n {options.namespace} describe resourcequota {_name(quota)}")
        if "limits.cpu" in hard:
            what = f"quota {_name(quota)} refuses pods without a CPU limit, which Headway does not set"
            yield Finding("note", f"{what}; a LimitRange adds one", _limit_range(options, int(requests.get("cpu", 4))))


def _limit_range(options: Options, cpus: int) -> str:
    limits = [{"type": "Container", "default": {"cpu": str(cpus)}}]
    body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "headway"}, "spec": {"limits": limits}}
    return f"echo '{json.dumps(body)}' | kubectl -n {options.namespace} apply -f -"


def _display(amounts: Mapping[str, float]) -> str:
    texts = {"cpu": lambda amount: f"{amount:g} CPUs", "memory": lambda amount: size(int(amount))}
    return " and ".join(texts[name](amount) for name, amount in amounts.items())


def _name(item: Object) -> str:
    return str(item["metadata"]["name"])
