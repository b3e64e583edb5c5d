"""A verb whose packages are not installed says which pip command brings them, and is no bug."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headway import targets
from headway.launcher import lifecycle
from headway.targets.fake import FakeTarget
from tests.contract.plays import FAKE, plan_play, write_project
from tests.contract.suite import WAITS

WITHOUT = """
import sys
for name in ("numpy", "safetensors", "torch"):
    sys.modules[name] = None  # as where it is not installed: whoever imports it fails
from headway.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("verb", ["eval", "export"])
def test_what_is_loaded_late_is_missed_with_a_pip_command_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(targets.TARGETS, "fake", FAKE)
    plan = plan_play(write_project(tmp_path / "project"), WAITS, on="fake", outputs=str(tmp_path / "runs"))
    url = lifecycle.launch(plan, name="r1", detach=True, target=FakeTarget()).url
    done = subprocess.run([sys.executable, "-c", WITHOUT, verb, url], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert f"headway {verb} needs Headway's extra [train]" in done.stderr
    assert "pip install" in done.stderr
