"""GPU nodes that are there now and cost money, whether or not anybody trains: by pool, and how to shrink it."""

from __future__ import annotations

from typing import Any

from headway.price.quote import region_of
from headway.price.table import ACCELERATOR, MACHINE, Price, load
from headway.targets.kubernetes import gke
from headway.targets.kubernetes.api import Api, Forbidden
from headway.targets.kubernetes.options import Options

POOL, ZONE = "cloud.google.com/gke-nodepool", "topology.kubernetes.io/zone"


def still_billed(api: Api, options: Options) -> list[str]:
    """One line for each pool of Google's that has GPU nodes. Nothing where the nodes may not be seen."""
    if options.platform != "gke":
        return []
    try:
        items = api("GET", "/api/v1/nodes").get("items") or []
    except Forbidden:
        return []
    pools: dict[str, list[dict[str, Any]]] = {}
    for item in items:
        labels = item["metadata"].get("labels") or {}
        if labels.get(gke.ACCELERATOR) and labels.get(POOL):
            pools.setdefault(str(labels[POOL]), []).append(item)
    return [_line(name, nodes, options) for name, nodes in sorted(pools.items())]


def _line(pool: str, nodes: list[dict[str, Any]], options: Options) -> str:
    prices = [_price(node) for node in nodes]
    known = [price for price in prices if price is not None]
    cost = f", ${sum(known):.2f}/h" if len(known) == len(prices) else ""
    count = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"
    where = f"--location {options.location or 'LOCATION'} --project {options.project or 'PROJECT'}"
    shrink = f"gcloud container clusters resize {options.cluster or 'CLUSTER'} --node-pool {pool} --num-nodes 0 {where}"
    return f"{count} with GPUs in pool {pool}{cost}; one that does not shrink by itself: {shrink}"


def _price(node: dict[str, Any]) -> float | None:
    """Dollars an hour of one node, by its labels."""
    labels = node["metadata"].get("labels") or {}
    kinds = {label: kind for kind, label in gke.ACCELERATORS.items()}
    kind = kinds.get(str(labels.get(gke.ACCELERATOR)))
    count = int(((node.get("status") or {}).get("capacity") or {}).get(gke.GPU, 0)) or 1
    region, table = region_of({"zone": labels.get(ZONE)}), load()
    body = table.price(MACHINE, str(labels.get(gke.MACHINE)), region)
    extra = table.price(ACCELERATOR, kind, region, count) if kind else None
    if body is None or extra is None:
        return None
    whole: Price = body + extra
    return whole.spot_usd if labels.get(gke.SPOT) == "true" else whole.usd
