"""A run watched from a real terminal: words, progress, and Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.cli.follow import PROGRESS
from headway.core.errors import FAILED, FINISHED, RESUMABLE
from tests.waiting import wait_until

PATIENCE_S = 90.0
SCRIPT = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("training has begun", flush=True)
while not os.path.exists(os.environ["ENOUGH"]):
    time.sleep(0.05)
print("that is all", flush=True)
"""


class Terminal:
    """A person at a terminal: reads what is shown, types keys."""

    def __init__(self, words: list[str], env: dict[str, str]) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execve(sys.executable, [sys.executable, "-m", "headway", *words], env)
        self.shown = ""

    def see(self, text: str) -> None:
        self._read(lambda: text in self.shown, f"never saw {text!r}")

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def leave(self) -> int:
        """Its exit code, once it has ended by itself."""
        self._read(lambda: False, "", until_closed=True)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self, seen, complaint: str, *, until_closed: bool = False) -> None:  # type: ignore[no-untyped-def]
        end = time.monotonic() + PATIENCE_S
        while not seen():
            assert time.monotonic() < end, f"{complaint}: {self.shown}"
            if not select.select([self._fd], [], [], 1.0)[0]:
                continue
            try:
                data = os.read(self._fd, 65536)
            except OSError:  # the other side of a terminal closes with an error
                data = b""
            if not data:
                assert until_closed, f"{complaint}: {self.shown}"
                return
            self.shown += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", data.decode(errors="replace"))


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "headway.yaml").write_text("name: job\nscript: train.py\n")
    given = {**os.environ, "HEADWAY_HOME": str(tmp_path / "home"), "ENOUGH": str(tmp_path / "enough"), "TERM": "xterm"}
    yield given
    subprocess.run([sys.executable, "-m", "headway", "down", "job"], env=given, capture_output=True, check=False)


def headway(env: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headway", *words], env=env, capture_output=True, text=True, check=False
    )
    return done.stdout


def test_the_lines_are_shown_and_a_script_without_progress_has_no_bar(env: dict[str, str]) -> None:
    terminal = Terminal(["run", "--name", "job"], env)
    terminal.see("training has begun")
    Path(env["ENOUGH"]).touch()
    assert terminal.leave() == FINISHED
    assert "that is all" in terminal.shown
    assert "starting" not in terminal.shown.partition("that is all")[2]


def followed(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headway", *words]
    return subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def test_a_run_prints_its_folder_once_and_its_end_once(env: dict[str, str], tmp_path: Path) -> None:
    Path(env["ENOUGH"]).touch()
    done = followed(env, "run", "--name", "job")
    assert done.returncode == FINISHED
    assert done.stdout.count(str(tmp_path / "runs" / "job")) == 1, done.stdout
    assert done.stdout.count("finished") == 1, done.stdout
    assert "next:" not in done.stdout, "its folder is on this machine, and there is no model to use"


def test_after_an_exception_the_next_step_is_to_fix_the_script_and_run_it_again(env: dict[str, str]) -> None:
    Path("broken.py").write_text("raise KeyError('missing')\n")
    Path("broken.yaml").write_text("name: broken\nscript: broken.py\nretries: 1\n")
    done = followed(env, "run", "-f", "broken.yaml", "--set", "seed=3", "--name", "job")
    assert done.returncode == FAILED
    assert done.stdout.count("KeyError: 'missing'") == 2, "the log has it once per attempt; the end does not repeat it"
    assert done.stdout.count(" failed") == 1, done.stdout
    assert done.stdout.splitlines()[-1] == "next: edit broken.py:1, then headway run -f broken.yaml --set seed=3"
    assert "next      headway why job" in headway(env, "status", "job")
    explained = headway(env, "why", "job")
    assert "KeyError: 'missing'" in explained
    assert explained.splitlines()[-1] == "next: edit broken.py:1, then headway run"


@pytest.mark.torch
def test_the_progress_lines_of_ranks_are_those_that_the_bar_replaces() -> None:
    from headway.training.metrics.progress import progress_line

    for numbers in (
        {"epoch": 0, "epochs": 2, "step": 3, "steps": 9, "loss": 0.5},
        {"step": 3},
        {"epoch": 1, "step": 4},
    ):
        assert PROGRESS.match(f"headway: {progress_line(numbers)}")
    for text in ("headway: bleu_4 0.2", "step 3 loss 0.5", "headway: stopped at step 8; its checkpoint is written"):
        assert not PROGRESS.match(text)


def test_ctrl_c_asks_and_detaching_lets_the_run_go_on(env: dict[str, str]) -> None:
    terminal = Terminal(["run", "--name", "job"], env)
    terminal.see("training has begun")
    terminal.press("\x03")
    terminal.see("[d]etach")
    terminal.press("d\n")
    assert terminal.leave() == FINISHED
    assert '"state": "running"' in headway(env, "status", "job", "--json")
    Path(env["ENOUGH"]).touch()
    assert "that is all" in headway(env, "logs", "job", "-f")


@pytest.mark.parametrize("answer", ["\x03", "s\n"])
def test_ctrl_c_and_a_second_one_or_an_s_stop_the_run_and_leave_it_resumable(env: dict[str, str], answer: str) -> None:
    terminal = Terminal(["run", "--name", "job"], env)
    terminal.see("training has begun")
    terminal.press("\x03")
    terminal.see("[d]etach")
    terminal.press(answer)
    assert terminal.leave() == RESUMABLE
    assert "next: headway resume job" in terminal.shown
    assert '"state": "stopped"' in headway(env, "status", "job", "--json")
    assert "nothing has failed" in headway(env, "why", "job")


def test_a_client_that_is_told_to_end_says_that_the_run_goes_on(env: dict[str, str], tmp_path: Path) -> None:
    """As a supervisor does it, with the output in a file."""
    with (tmp_path / "said").open("w") as said:
        client = subprocess.Popen(
            [sys.executable, "-m", "headway", "run", "--name", "job"], env=env, stdout=said, stderr=said
        )
    wait_until(lambda: "training has begun" in (tmp_path / "said").read_text(), (tmp_path / "said").read_text)
    client.terminate()
    assert client.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert (
        "job goes on without this terminal.   next: headway logs job -f   or   headway stop job"
        in (tmp_path / "said").read_text()
    )
    assert '"state": "running"' in headway(env, "status", "job", "--json")
    Path(env["ENOUGH"]).touch()
    assert "that is all" in headway(env, "logs", "job", "-f")


def test_the_shell_completes_verbs_options_and_runs(env: dict[str, str]) -> None:
    Path(env["ENOUGH"]).touch()
    headway(env, "run", "--name", "job-of-mine")

    def completions(line: str) -> set[str]:
        # What argcomplete's shell function does: the answers come back on descriptor 8.
        asked = {**env, "_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
        command = f"exec 8>answer; exec {sys.executable} -c 'import headway.cli; headway.cli.main()'"
        subprocess.run(["bash", "-c", command], env=asked, check=False, capture_output=True)
        return {answer.strip() for answer in Path("answer").read_text().split("\n")} - {""}

    assert completions("headway sta") == {"status"}
    assert "job-of-mine" in completions("headway logs jo")
    assert "--render" in completions("headway plan --r")


def test_the_completion_script_is_for_the_shell_asked_for(env: dict[str, str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "headway" in headway(env, "completion", shell)
