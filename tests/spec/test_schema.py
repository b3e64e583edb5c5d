"""The published schema: up to date, true of every example, and as strict as the loader about shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from headway.cli.run import templates
from headway.core.errors import BadJob, Problem
from headway.spec import loads, schema, yaml_reader
from headway.spec.model import Job, Source
from headway.spec.rules import Node
from headway.spec.schema import field_comments, summary
from tests.spec.test_loading import WHOLE
from tests.spec.world import CATALOG, Cluster, Config

ROOT = Path(__file__).parents[2]
JOB_FILES = sorted([*(ROOT / "examples").glob("*.yaml"), *templates().values()])
SCHEMA = Draft202012Validator(schema.job_schema(CATALOG))


def as_an_editor_sees(text: str) -> Any:
    """The document as plain values. Editors read YAML 1.2, as we do."""
    problems: list[Problem] = []
    node = yaml_reader.parse(text, "f", problems)
    assert node is not None
    assert not problems
    return plain(node)


def plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {name: plain(member) for name, member in node.value.items()}
    return [plain(item) for item in node.value] if isinstance(node.value, tuple) else node.value


def test_the_published_schema_is_up_to_date() -> None:
    assert schema.PATH.read_text() == schema.text(), "run: python -m headway.spec.schema"


def test_the_published_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(json.loads(schema.PATH.read_text()))


def test_there_are_examples_and_templates() -> None:
    assert {path.name for path in JOB_FILES} >= {"captions.yaml", "template.yaml", "script.yaml"}


@pytest.mark.parametrize("path", JOB_FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_example_and_template_validates(path: Path) -> None:
    published = Draft202012Validator(json.loads(schema.PATH.read_text()))
    assert [error.message for error in published.iter_errors(as_an_editor_sees(path.read_text()))] == []


def test_the_whole_job_file_validates() -> None:
    assert [error.message for error in SCHEMA.iter_errors(as_an_editor_sees(WHOLE))] == []


def test_keys_with_nothing_under_them_validate() -> None:
    text = "name: x\nscript: train.py\nconfig:\ndata:\nresources:\ntargets:\nargs:\nenv:\nmax_wait:\nrecipe:\n"
    assert SCHEMA.is_valid(as_an_editor_sees(text))


BAD_LINES = [
    "colour: red",
    "name: Not_A_Name",
    "seed: -1",
    "seed: two",
    "seed: 1.5",
    "exact: yes",
    "outputs: http://x",
    "outputs: 5",
    "script: train.py",
    "args: [x]",
    "recipe: captionning",
    "config: {epocs: 3}",
    "config: {epochs: 0}",
    "config: {dropout: 1}",
    "config: {decoder: transformer}",
    "config: {sizes: [1]}",
    "config: {sizes: [1, 2, 3]}",
    "config: {sizes: [1, a]}",
    "config: {schedule: {kind: linear}}",
    "config: 5",
    "data: {train: gs://x}",
    "data: {train: [{weight: 1}]}",
    "data: {train: [{source: x, weight: 0}]}",
    "data: {trian: []}",
    "checkpoint: {every: 10}",
    "checkpoint: {every: often}",
    "checkpoint: {keep_last: 0}",
    "resources: {accelerator: t4:1}",
    "resources: {accelerator: T4:0}",
    "resources: {memory: 30}",
    "resources: {memory: 30G}",
    "resources: {processes: 0}",
    "resources: {processes: many}",
    "resources: {nodes: 0}",
    "budget: {usd: 0}",
    "max_wait: 60",
    "max_wait: 10min",
    "secrets: {KEY: hunter2}",
    "secrets: {KEY: {ref: hunter2}}",
    "secrets: {KEY: {ref: env:X, as: folder}}",
    "secrets: {KEY: {as: file}}",
    "secrets: {A-B: env:X}",
    "notify: {webhook: https://x}",
    "env: {A-B: x}",
    "env: {A: [x]}",
    "log_to: [wandbb]",
    "log_to: wandb",
    "image: {uri: a, base: b}",
    "image: {uri: a, repository: b}",
    "requirements: ../x",
    "requirements: /x",
    "mounts: [{at: /d}]",
    "mounts: [{at: /d, pvc: x, path: /x}]",
    "mounts: [{at: d, pvc: x}]",
    "mounts: [{pvc: x}]",
    "phases: [{name: a}]",
    "targets: {gke: {}}",
    "targets: {gke: {kind: kubernets}}",
    "targets: {GKE: {kind: kubernetes}}",
    "targets: {gke: {kind: kubernetes, namspace: x}}",
    "targets: {gke: {kind: kubernetes, price: -1}}",
    "targets: {gke: {kind: kubernetes, engine: x}}",
    "targets: {local: {kind: local, grace: 5}}",
]


@pytest.mark.parametrize("line", BAD_LINES)
def test_what_the_loader_refuses_for_its_shape_the_schema_refuses_too(line: str, project: Path) -> None:
    job = {"name": "x", "recipe": "captioning", **as_an_editor_sees(line)}
    with pytest.raises(BadJob):
        loads(json.dumps(job), root=project, catalog=CATALOG)
    assert not SCHEMA.is_valid(job)


@pytest.mark.parametrize(
    "text", ["recipe: captioning", "name: x", "[]", "5", "name: x\nrecipe: captioning\nscript: t.py"]
)
def test_what_is_no_job_at_all_is_refused_by_both(text: str, project: Path) -> None:
    with pytest.raises(BadJob):
        loads(text, root=project, catalog=CATALOG)
    assert not SCHEMA.is_valid(as_an_editor_sees(text))


def test_every_key_of_the_job_is_described() -> None:
    def undescribed(part: Any, path: str) -> list[str]:
        inside = part.get("properties", {})
        here = [f"{path}.{name}" for name, key in inside.items() if not key.get("description")]
        return here + [found for name, key in part.get("$defs", {}).items() for found in undescribed(key, name)]

    published = json.loads(schema.PATH.read_text())
    assert undescribed(published, "job") == []


def test_comments_beside_and_above_a_field_describe_it() -> None:
    comments = field_comments(Config)
    assert comments["decoder"] == "how words are made"
    assert comments["schedule"] == "Two lines of reasons above the field."
    assert comments["batch"] == ""
    assert field_comments(Source)["limit"] == "at most this many rows"


def test_a_docstring_that_dataclasses_made_up_says_nothing() -> None:
    assert summary(Cluster) == ""
    assert summary(Job) == "A job: the contents of headway.yaml."


def test_defaults_are_shown_as_they_would_be_typed() -> None:
    definitions = schema.job_schema(CATALOG)["$defs"]
    assert definitions["local-target"]["properties"]["grace"]["default"] == "30s"
    assert definitions["captioning-config"]["properties"]["lr"]["default"] == 1e-3
