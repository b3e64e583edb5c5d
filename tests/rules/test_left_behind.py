"""The end of a test session names the processes that its tests left behind."""

from __future__ import annotations

import os
import subprocess

from tests.left_behind import SESSION, left_behind


def test_a_live_process_of_this_session_is_named_and_one_of_another_is_not() -> None:
    ours = subprocess.Popen(["sleep", "600"])
    theirs = subprocess.Popen(["sleep", "600"], env={**os.environ, SESSION: "another"})
    try:
        named = left_behind(os.environ[SESSION])
    finally:
        for process in (ours, theirs):
            process.kill()
            process.wait()
    assert f"{ours.pid}: sleep 600" in named
    assert not any(line.startswith(f"{theirs.pid}:") for line in named)
    assert f"{ours.pid}: sleep 600" not in left_behind(os.environ[SESSION])
