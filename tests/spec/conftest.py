"""Job files read in a folder of their own, with train.py and requirements.txt in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from headway.core.errors import BAD_INPUT, BadJob, Problem
from headway.spec import Job, loads
from tests.spec.world import CATALOG, Load, Problems


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "requirements.txt").write_text("tqdm\n")
    return tmp_path


@pytest.fixture
def read(project: Path) -> Load:
    """A job from text, in a folder with train.py and requirements.txt."""

    def read_text(text: str, *settings: str, env: dict[str, str] | None = None) -> Job:
        return loads(text, where="headway.yaml", root=project, set=settings, env=env or {}, catalog=CATALOG)

    return read_text


@pytest.fixture
def problems(read: Load) -> Problems:
    """What is wrong with a text, by `line:column` (or by the override): exactly one problem a place."""

    def problems_of(text: str, *settings: str, env: dict[str, str] | None = None) -> dict[str, Problem]:
        with pytest.raises(BadJob) as caught:
            read(text, *settings, env=env)
        assert caught.value.exit_code == BAD_INPUT
        return by_place(caught.value.problems)

    return problems_of


def by_place(found: Sequence[Problem]) -> dict[str, Problem]:
    places = [problem.where.removeprefix("headway.yaml:") for problem in found]
    assert len(set(places)) == len(places), f"two problems at one place: {found}"
    assert all(problem.what and problem.fix for problem in found), f"a problem without a way out: {found}"
    return dict(zip(places, found, strict=True))
