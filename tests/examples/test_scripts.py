"""The script examples, run as people run them: by the command line, on this machine, and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.launcher import lifecycle
from headway.rundir.layout import RunFolder
from headway.spec import Job
from headway.storage import open_store
from tests.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
PLUGIN = "plugin"  # needs its plug-ins installed: tests/plugins/test_example.py
JOBS = [path for path in EXAMPLES.glob("*/headway.yaml") if path.parent.name != PLUGIN]
SCRIPTS = sorted(path.parent.name for path in JOBS if Job.load(path).script)
PATIENCE_S = 120.0


@pytest.fixture
def headway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """`headway("run", …)` as a process of its own, with an index of its own. What it has started is taken down."""
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))

    def type_(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "headway", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    yield type_
    for plan in (tmp_path / "runs").glob("*/plan.json"):
        lifecycle.down(str(plan.parent))


def job_of(name: str, tmp_path: Path, *changes: str) -> tuple[str, ...]:
    sets = [word for change in (f"outputs={tmp_path / 'runs'}", *changes) for word in ("--set", change)]
    return ("-f", str(EXAMPLES / name / "headway.yaml"), *sets)


def folder_of(tmp_path: Path, run: str) -> RunFolder:
    return RunFolder(open_store(str(tmp_path / "runs" / run)))


def changed_copy(folder: Path, lines: str) -> None:
    """The example of any framework, with something happening in a step."""
    folder.mkdir()
    text, mark = (EXAMPLES / "any-framework" / "train.py").read_text(), "    if step % EVERY == 0"
    assert text.count(mark) == 1
    (folder / "train.py").write_text("import time\n" + text.replace(mark, lines + mark))
    (folder / "headway.yaml").write_text((EXAMPLES / "any-framework" / "headway.yaml").read_text())


def test_there_are_these_examples() -> None:
    assert set(SCRIPTS) >= {"any-framework", "keras-multiworker", "plain-pytorch"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_example_can_be_planned(headway: Any, tmp_path: Path, name: str) -> None:
    done = headway("plan", *job_of(name, tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["code"]["files"] >= 1


def test_an_import_and_five_lines_are_all_that_a_plain_script_needs() -> None:
    before, after = (
        [line.split("  # ")[0] for line in (EXAMPLES / "plain-pytorch" / name).read_text().splitlines() if line]
        for name in ("before.py", "train.py")
    )
    added = [line.strip() for line in after[1:] if line not in before]
    assert added[0] == "import headway"
    assert len(added) == 6
    gone = [line.strip() for line in before[1:] if line not in after]
    assert gone == [
        "for epoch in range(EPOCHS):",
        "for x, y in loader:",
        "optimizer.zero_grad()",
        "loss.backward()",
        "optimizer.step()",
        "schedule.step()",
    ]


@pytest.mark.slow
def test_a_script_of_any_framework_goes_on_with_its_own_files(headway: Any, tmp_path: Path) -> None:
    unbroken = subprocess.run(
        [sys.executable, EXAMPLES / "any-framework" / "train.py"], cwd=tmp_path, capture_output=True, check=False
    )
    assert unbroken.returncode == 0, unbroken.stderr
    slow = tmp_path / "slow"
    changed_copy(
        slow, "    while step == 1050 and state['step'] == 0 and not asked_to_stop:\n        time.sleep(0.01)\n"
    )
    job = ("-f", slow / "headway.yaml", "--set", f"outputs={tmp_path / 'runs'}", "--name", "any")
    assert headway("run", *job, "-d").returncode == 0
    folder = folder_of(tmp_path, "any")
    state = tmp_path / "runs" / "any" / "local" / "files" / "state.json"
    wait_until(lambda: state.exists() and json.loads(state.read_text())["step"] == 1000)
    stopped = headway("stop", "any")
    assert stopped.returncode == 0, stopped.stderr
    assert json.loads(folder.store.read("files/state.json"))["step"] == 1050
    resumed = headway("resume", "any")
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming from step 1050" in "".join(line.text for line in folder.log_lines())
    assert folder.store.read("files/model.json") == (tmp_path / "files" / "model.json").read_bytes()


@pytest.mark.slow
def test_a_script_of_any_framework_survives_kill_9(headway: Any, tmp_path: Path) -> None:
    """The supervisor restarts it in place, with the files that it had."""
    crashing = tmp_path / "crashing"
    changed_copy(
        crashing, "    if step == 1234 and state['step'] == 0:\n        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    job = ("-f", crashing / "headway.yaml", "--set", f"outputs={tmp_path / 'runs'}", "--name", "any")
    done = headway("run", *job)
    assert done.returncode == 0, done.stderr
    folder = folder_of(tmp_path, "any")
    assert "resuming from step 1200" in "".join(line.text for line in folder.log_lines())
    assert [event["signal"] for event in folder.events() if event["kind"] == "rank_exit"] == ["SIGKILL"]
    subprocess.run(
        [sys.executable, EXAMPLES / "any-framework" / "train.py"], cwd=tmp_path, check=True, capture_output=True
    )
    assert folder.store.read("files/model.json") == (tmp_path / "files" / "model.json").read_bytes()


def test_keras_on_two_workers_goes_on_with_its_epoch(headway: Any, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    pytest.importorskip("tf_keras", reason="tf-keras (Keras 2) is not installed")
    job = job_of("keras-multiworker", tmp_path)
    assert headway("run", *job, "--name", "keras", "-d").returncode == 0
    folder = folder_of(tmp_path, "keras")
    wait_until(lambda: any("Epoch 3/5" in line.text for line in folder.log_lines()))
    ranks = [pid for pid in _pids() if _variable(pid, "HEADWAY_RUN") == "keras" and _variable(pid, "RANK") == "1"]
    os.kill(ranks[0], signal.SIGKILL)
    assert headway("logs", "keras", "-f").returncode == 0
    assert folder.ended()["state"] == "finished"  # type: ignore[index]
    assert any(entry.key.startswith("files/model/") for entry in folder.store.list("files/"))
    epochs = [line.text for line in folder.log_lines(rank=0) if line.text.startswith("Epoch ")]
    assert epochs.count("Epoch 1/5") == 1  # not from the beginning


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _variable(pid: int, name: str) -> str:
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return dict(pair.partition("=")[::2] for pair in pairs).get(name, "")
