"""The same projects, unchanged, on a strict double of Vertex AI that boots its image and runs the program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.projects.unchanged import KEY, Folder, Project, each_project, kill, ranks_of_run
from tests.servers.vertex_machines import Image
from tests.targets.vertex.cloud import Cloud, google
from tests.targets.vertex.jobs import IMAGE

pytestmark = [pytest.mark.slow, pytest.mark.torch]


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    with google(tmp_path, monkeypatch) as made:
        made.vertex.images[IMAGE] = Image(fresh=True)
        yield made


@each_project()
def test_a_project_runs_unchanged_on_vertex_and_continues_after_a_kill(
    project: Project, cloud: Cloud, tmp_path: Path
) -> None:
    entry = {"kind": "vertex", "project": "my-project", "region": "us-east1"}
    keys: dict[str, Any] = {"outputs": "gs://bucket/runs", "image": {"uri": IMAGE}}
    if project.name == "leaves":
        keys["secrets"] = {
            "WANDB_KEY": {"ref": "gcp-sm://wandb-key", "as": "file", "at": "configuration/wandb-key.txt"}
        }
        cloud.secrets.secrets["my-project", "wandb-key"] = [KEY.encode()]
    here = Folder.copy(project, tmp_path, entry, **keys)
    here.start("--yes", "--no-rehearse")
    kill(ranks_of_run(here.run))
    here.ends_with_its_model()
    assert cloud.vertex.live() == []
