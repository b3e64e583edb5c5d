"""GPU nodes that stay billed are named, with what they cost and the command that shrinks their pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headway.targets.kubernetes.client import Forbidden
from headway.targets.kubernetes.doctor import billable_resources
from headway.targets.kubernetes.options import Options

HERE = Options(cluster="ml", location="us-east1-c", project="my-project")


def node(pool: str, accelerator: str = "nvidia-tesla-t4", *, spot: bool = False, gpus: int = 1) -> dict[str, Any]:
    labels = {
        "cloud.google.com/gke-nodepool": pool,
        "cloud.google.com/gke-accelerator": accelerator,
        "node.kubernetes.io/instance-type": "n1-standard-8",
        "topology.kubernetes.io/zone": "us-east1-c",
        **({"cloud.google.com/gke-spot": "true"} if spot else {}),
    }
    return {
        "metadata": {"name": f"gke-{pool}", "labels": labels},
        "status": {"capacity": {"nvidia.com/gpu": str(gpus)}},
    }


class Cluster:
    def __init__(self, *nodes: dict[str, Any], forbidden: bool = False) -> None:
        self.nodes, self.forbidden = nodes, forbidden

    def __call__(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None
    ) -> dict[str, Any]:
        assert (method, path) == ("GET", "/api/v1/nodes")
        if self.forbidden:
            raise Forbidden("may not list nodes")
        return {"items": list(self.nodes)}

    def lines(self, path: str, *, query: Mapping[str, str] | None = None) -> Iterator[str]:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


def test_each_pool_has_its_price_and_its_command() -> None:
    plain = {"metadata": {"name": "cpu", "labels": {"cloud.google.com/gke-nodepool": "system"}}}
    one, two = billable_resources(Cluster(node("gpus"), node("gpus"), node("spots", spot=True), plain), HERE)
    assert one.startswith("2 nodes with GPUs in pool gpus, $1.46/h")
    assert "resize ml --node-pool gpus --num-nodes 0 --location us-east1-c --project my-project" in one
    assert two.startswith("1 node with GPUs in pool spots, $0.37/h")


def test_a_node_of_unknown_price_is_named_all_the_same() -> None:
    (line,) = billable_resources(Cluster(node("odd", "nvidia-tesla-k80")), HERE)
    assert line.startswith("1 node with GPUs in pool odd; ")


def test_no_gpus_no_words_and_no_rights_no_failure() -> None:
    assert billable_resources(Cluster(), HERE) == []
    assert billable_resources(Cluster(forbidden=True), HERE) == []
    assert billable_resources(Cluster(node("gpus")), Options(platform="plain")) == []
