"""What Google's Kubernetes calls accelerators and spot machines. Of 2026; asks nobody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GPU = "nvidia.com/gpu"
ACCELERATOR, SPOT, MACHINE = (
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-spot",
    "node.kubernetes.io/instance-type",
)
SPOT_GRACE_S = 15.0  # for pods of users, whatever they ask

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


def nodes(resources: Mapping[str, Any], platform: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The labels that nodes must have, and the taints to put up with."""
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
    """Google's label for it: of the short name, or the label itself."""
    known = {**ACCELERATORS, **{label.upper(): label for label in ACCELERATORS.values()}}
    return known.get(kind.upper().replace("_", "-"))
