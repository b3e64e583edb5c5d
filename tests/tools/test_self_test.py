"""`headway doctor --deep`, as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.supervisor.supervised import quiet_environment

pytestmark = [pytest.mark.slow, pytest.mark.torch]


def test_doctor_deep_trains_kills_resumes_compares_and_measures(tmp_path: Path) -> None:
    env = {**quiet_environment(), "HEADWAY_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "headway", "doctor", "--on", "local", "--deep", "--json"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    found = {one["what"]: one["mark"] for one in json.loads(done.stdout)}
    words = "\n".join(found)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bad" not in found.values()
    for expected in ("it was killed, and resumed from step", "the same bits as an uninterrupted loop", "GB/s", "bf16"):
        assert expected in words
    assert not list(tmp_path.glob("runs")), "it leaves no run behind"
