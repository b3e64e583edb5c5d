"""The schemas that a cluster holds objects to, offline: Kubernetes' own, and Kubeflow's CRDs where they can be had.

CRDs are other people's files: they are looked for in $HEADWAY_TEST_CRDS, in the test bed's folder, and beside this
repository; `<plural>-v<release>.yaml`, as their projects publish them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

RELEASES = ("1.25", "1.31", "1.33")  # of Kubernetes; the oldest and newest that the validator knows are no news
PLACES = (
    os.environ.get("HEADWAY_TEST_CRDS", ""),
    "~/.cache/headway-testbed/crds",
    str(Path(__file__).resolve().parents[4] / "shared" / "testbed" / "crds"),
)


def crd(name: str) -> dict[str, Any]:
    """The published CRD of that file name; skips where nobody has laid it ready."""
    for place in filter(None, PLACES):
        path = Path(place).expanduser() / f"{name}.yaml"
        if path.is_file():
            found: dict[str, Any] = yaml.safe_load(path.read_text())
            return found
    pytest.skip(f"{name}.yaml is not here: HEADWAY_TEST_CRDS names the folder of Kubeflow's CRDs")


def schema_of(name: str) -> dict[str, Any]:
    """Of the version that is served, made strict: a field that the CRD does not have would be dropped in silence."""
    (version,) = [each for each in crd(name)["spec"]["versions"] if each["served"]]
    schema: dict[str, Any] = strict(version["schema"]["openAPIV3Schema"])
    return schema


def strict(node: Any) -> Any:
    if isinstance(node, list):
        return [strict(each) for each in node]
    if not isinstance(node, dict):
        return node
    made = {key: strict(value) for key, value in node.items() if key != "format"}
    open_ended = "additionalProperties" in made or made.get("x-kubernetes-preserve-unknown-fields")
    if made.get("type") == "object" and isinstance(node.get("properties"), dict) and not open_ended:
        made["additionalProperties"] = False
    if made.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    return made


def problems(body: dict[str, Any], name: str) -> list[str]:
    from jsonschema import Draft202012Validator

    schema = schema_of(name)
    for field in ("apiVersion", "kind"):
        schema["properties"][field] = {"type": "string"}
    schema["properties"]["metadata"] = {"type": "object"}
    errors = Draft202012Validator(schema).iter_errors(body)
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}" for error in errors]
