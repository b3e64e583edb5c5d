"""What the tests on the strict cloud share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.targets.vertex.cloud import Cloud, google
from tests.targets.vertex.lab import Lab


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    with google(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def lab(cloud: Cloud, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(cloud, tmp_path)
    yield made
    made.close()
