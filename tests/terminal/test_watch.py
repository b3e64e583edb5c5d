"""A run watched from a real terminal and from a pipe: it ends with the run, and leaving it leaves the run alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.core.errors import FAILED, FINISHED
from headway.rundir.layout import RunFolder, SegmentWriter
from headway.storage import open_store
from tests.cli.test_attached import Terminal

SCRIPT = """
import os, sys, time
print("training has begun", flush=True)
while not os.path.exists(os.environ["ENOUGH"]):
    time.sleep(0.05)
print("that is all", flush=True)
sys.exit(int(open(os.environ["ENOUGH"]).read()))
"""


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A run that goes on until it is enough, with a curve and a progress of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "headway.yaml").write_text("name: job\nscript: train.py\nretries: 0\n")
    given = {**os.environ, "HEADWAY_HOME": str(tmp_path / "home"), "ENOUGH": str(tmp_path / "enough"), "TERM": "xterm"}
    given.pop("NO_COLOR", None)
    assert headway(given, "run", "--name", "job", "--detach").returncode == 0
    folder = RunFolder(open_store(str(tmp_path / "runs" / "job")))
    writer = SegmentWriter(folder.store, "metrics", 1)
    for step in range(1, 50):
        writer.add(json.dumps({"step": step, "epoch": 0, "time": 0.0, "loss": 10.0 / step}))
    writer.flush()
    folder.write_json("progress.json", {"step": 49, "steps": 100, "epoch": 0, "epochs": 2, "rate": 3.0, "eta_s": 17})
    yield given
    headway(given, "down", "job")


def headway(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headway", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def enough(env: dict[str, str], code: int = 0) -> None:
    partial = Path(env["ENOUGH"] + ".part")
    partial.write_text(str(code))
    partial.rename(env["ENOUGH"])


def test_the_panel_shows_the_run_and_ends_with_it(env: dict[str, str]) -> None:
    terminal = Terminal(["watch", "job"], env)
    for text in ("training has begun", "step 49/100", "3 steps/s", "17s left", "loss", "█", "q quits"):
        terminal.see(text)
    enough(env)
    assert terminal.leave() == FINISHED
    assert "that is all" in terminal.shown
    assert "job finished" in terminal.shown
    assert "next:" not in terminal.shown, "the folder of this script is on this machine"


def test_a_run_that_fails_ends_it_with_that_exit_code(env: dict[str, str]) -> None:
    terminal = Terminal(["watch", "job"], env)
    terminal.see("training has begun")
    enough(env, 7)
    assert terminal.leave() == FAILED
    assert "job failed" in terminal.shown


@pytest.mark.parametrize("key", ["q", "\x03"])
def test_q_and_ctrl_c_leave_the_run_alone_and_the_terminal_as_it_was(env: dict[str, str], key: str) -> None:
    terminal = Terminal(["watch", "job"], env)
    before = termios.tcgetattr(terminal._fd)
    terminal.see("training has begun")
    terminal.press("\x1b[A")  # an arrow is no wish to leave
    terminal.press("x")
    terminal.see("step 49/100")
    terminal.press(key)
    terminal.see("job goes on without this terminal")
    after = termios.tcgetattr(terminal._fd)
    assert terminal.leave() == FINISHED
    assert after == before
    assert json.loads(headway(env, "status", "job", "--json").stdout)["state"] == "running"


def test_without_colours_there_are_none(env: dict[str, str]) -> None:
    enough(env)
    process = subprocess.run(
        ["script", "-qec", f"{sys.executable} -m headway watch job", "/dev/null"],
        env={**env, "NO_COLOR": "1"}, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "training has begun" in process.stdout
    assert re.findall(r"\x1b\[(?:\d+;)*(?:3\d|4\d|9\d)(?:;\d+)*m", process.stdout) == []


def test_where_there_is_no_terminal_it_is_lines(env: dict[str, str]) -> None:
    command = [sys.executable, "-m", "headway", "watch", "job"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        seen = ""
        while "headway: running" not in seen:
            seen += process.stdout.readline()
        enough(env, 3)
        seen += process.stdout.read()
    assert process.returncode == FAILED
    assert "\x1b" not in seen
    assert "training has begun\n" in seen
    assert "step 49/100  3 steps/s  17s left  loss 0.2041  spent" in seen
