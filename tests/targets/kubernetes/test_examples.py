"""The examples for a cluster plan and render without credentials, and what they render is what a cluster takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.cli import main
from headway.targets.kubernetes import manifests
from tests.targets.kubernetes import admission

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(
    ("example", "target", "kinds"),
    [
        ("captions-gke", "gke", {"Job", "PyTorchJob"}),
        ("translation-statefulset", "cluster", {"Job", "Role", "RoleBinding", "Service", "StatefulSet"}),
    ],
)
def test_an_example_renders_without_credentials(
    example: str, target: str, kinds: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    words = ["plan", "-f", str(EXAMPLES / f"{example}.yaml"), "--on", target, "--render", str(tmp_path / "manifests")]
    assert main(words) == 0
    bodies = [
        json.loads(path.read_text()) for path in (tmp_path / "manifests").iterdir() if path.name != manifests.START_FILE
    ]
    assert {body["kind"] for body in bodies} == kinds
    for body in bodies:
        assert admission.admission_problems(body) == []


def test_the_captioner_asks_for_one_t4_as_its_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    words = ["plan", "-f", str(EXAMPLES / "captions-gke.yaml"), "--on", "gke", "--render", str(tmp_path)]
    assert main(words) == 0
    replicas = json.loads((tmp_path / "pytorchjob.json").read_text())["spec"]["pytorchReplicaSpecs"]
    assert list(replicas) == ["Master"]
    pod = replicas["Master"]["template"]["spec"]
    assert pod["serviceAccountName"] == "gcs-access"
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert pod["nodeSelector"]["cloud.google.com/gke-accelerator"] == "nvidia-tesla-t4"
