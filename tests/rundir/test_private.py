"""Nobody else on the machine can read what a run writes, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway import cli
from headway.cli import dispatch
from headway.core.platform import make_private


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_run_folders_code_index_and_crash_files_are_the_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    monkeypatch.setenv("HEADWAY_HOME", str(home))
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "train.py").write_text("open('made.txt', 'w').write('x')\n")
    (project / "headway.yaml").write_text("name: job\nscript: train.py\n")
    assert cli.main(["run", "--name", "r1"]) == 0
    assert mode_of(home) == 0o700
    assert mode_of(home / "ledger.sqlite") == 0o600
    assert mode_of(project / "runs/r1") == 0o700
    assert mode_of(project / "made.txt") == 0o666, "the program's own files are its own affair"
    assert cli.main(["pull", "r1", "--to", "copy"]) == 0
    assert mode_of(project / "copy") == 0o700
    monkeypatch.setattr(dispatch, "_function", lambda verb, kind: lambda parser: 1 / 0)
    assert cli.main(["ps"]) == 1
    assert mode_of(home / "crash.txt") == 0o600


def test_a_folder_that_a_group_shares_on_purpose_stays_shared(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2770)
    make_private(shared / "r1")
    assert mode_of(shared / "r1") == 0o2770
    shared.chmod(0o777)
    make_private(shared / "r2")
    assert mode_of(shared / "r2") == 0o700
    make_private(shared / "r1")
    assert mode_of(shared / "r1") == 0o2770, "what exists is left as it is"
