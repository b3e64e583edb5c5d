"""What the tests on the strict cloud share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.packaging import supervisor_runtime
from tests.shared import made_once
from tests.targets.vertex.cloud import Cloud, google
from tests.targets.vertex.lab import Lab


@pytest.fixture(autouse=True)
def _one_runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the supervisor's archive once. Tests have a HEADWAY_HOME of their own, and each would make it again."""
    folder = made_once(tmp_path_factory, "runtimes", lambda folder: folder.mkdir())
    monkeypatch.setattr(supervisor_runtime, "_folder", lambda: folder)
    return folder


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _one_runtime: Path) -> Iterator[Cloud]:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "runtimes").symlink_to(_one_runtime)  # clients in processes of their own use it too
    with google(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def lab(cloud: Cloud, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(cloud, tmp_path)
    yield made
    made.close()
