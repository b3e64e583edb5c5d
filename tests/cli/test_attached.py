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

from headway.core.errors import FINISHED, RESUMABLE

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


def test_the_lines_are_shown_and_the_end_says_what_to_type_next(env: dict[str, str]) -> None:
    terminal = Terminal(["run", "--name", "job"], env)
    terminal.see("training has begun")
    Path(env["ENOUGH"]).touch()
    assert terminal.leave() == FINISHED
    assert "that is all" in terminal.shown
    assert "next: headway" in terminal.shown


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


def test_a_client_that_is_told_to_end_says_that_the_run_goes_on(env: dict[str, str], tmp_path: Path) -> None:
    """As a supervisor does it, with the output in a file."""
    with (tmp_path / "said").open("w") as said:
        client = subprocess.Popen(
            [sys.executable, "-m", "headway", "run", "--name", "job"], env=env, stdout=said, stderr=said
        )
    end = time.monotonic() + PATIENCE_S
    while "training has begun" not in (tmp_path / "said").read_text():
        assert time.monotonic() < end, (tmp_path / "said").read_text()
        time.sleep(0.1)
    client.terminate()
    assert client.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert "job goes on.   next: headway logs job -f   or   headway stop job" in (tmp_path / "said").read_text()
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
