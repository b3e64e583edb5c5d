"""The old version, a project in which both work, and the result of a run that was never interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.old_headway import Project, old_source


@pytest.fixture(scope="session")
def old_src(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return old_source(tmp_path_factory.mktemp("old-headway"))


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory, old_src: Path) -> dict[str, str]:
    """The result of the same job, never interrupted, by the old version on this machine."""
    folder = tmp_path_factory.mktemp("straight")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADWAY_HOME", str(folder / "home"))
        project = Project(folder=folder / "project", old_src=old_src).write()
        project.old("run", "--name", "straight")
    return project.digest("straight")


@pytest.fixture
def project(tmp_path: Path, old_src: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    return Project(folder=tmp_path / "project", old_src=old_src).write()
