"""A script that knows nothing of Headway: its files are kept, pulled and restored, and a resume says what it does."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from headway.cli.dispatch import locate
from headway.rundir.layout import RunFolder
from headway.storage import open_store
from tests.cli.conftest import Headway
from tests.waiting import wait_until

# What people write: argparse, a loop, a file that is replaced now and then.
LOOP = """\
import argparse, os, pathlib, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10)
steps = parser.parse_args().steps
out = pathlib.Path("models")
out.mkdir(exist_ok=True)
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
step = {start}
print(f"begins at {{step}}; finds {{sorted(p.name for p in out.iterdir())}}; process {{os.getpid()}}", flush=True)
while step < steps:
    step += 1
    (out / f"step-{{step}}.pt").write_bytes(b"weights" * step)
    (out / f"step-{{step - 2}}.pt").unlink(missing_ok=True)  # keeps two, as trainers do
    while step == 5 and not pathlib.Path(os.environ["GATE"]).exists():
        time.sleep(0.02)
"""
RESUMES = LOOP.format(start="resume(out)").replace(
    "out = pathlib", "def resume(out): return max([int(p.stem[5:]) for p in out.iterdir()], default=0)\nout = pathlib"
)
RESTARTS = LOOP.format(start="0")


def write_job(script: str, *, price: float | None = None) -> Path:
    gate = Path("../gate").resolve()  # outside the project, whose new files are kept
    Path("train.py").write_text(script)
    priced = f"targets: {{local: {{kind: local, price: {price}}}}}\nbudget: {{hours: 1}}\n" if price else ""
    Path("headway.yaml").write_text(f"name: job\nscript: train.py\nenv: {{GATE: '{gate}'}}\n{priced}")
    return gate


def folder_of(run: str) -> RunFolder:
    return RunFolder(open_store(locate(run)))


def begun(run: str) -> list[str]:
    return [line.text for line in folder_of(run).log_lines(0) if line.text.startswith("begins")]


def running(headway: Headway, run: str, count: int = 1) -> None:
    def prints() -> bool:
        return headway("logs", run).out.count("begins at") >= count

    wait_until(prints, f"attempt {count} prints")


def files_of(run: str, prefix: str) -> list[str]:
    return [entry.key.removeprefix(prefix) for entry in folder_of(run).store.list(prefix)]


def test_a_script_that_loads_its_files_is_stopped_pulled_and_resumed(headway: Headway, tmp_path: Path) -> None:
    gate = write_job(RESUMES)
    planned = headway("plan")
    assert "by the project: its files are restored" in planned.out
    assert json.loads(headway("plan", "--json").out)["resume"] == "script"
    assert headway("run", "-y", "-d", "--no-rehearse", "--name", "mine").code == 0
    running(headway, "mine")
    stopped = headway("stop", "mine")
    assert "whether it continues from them is up to the program" in stopped.out
    assert stopped.out.splitlines()[-1] == "next: headway resume mine"
    assert files_of("mine", "files/workdir/models/") == ["step-4.pt", "step-5.pt"]
    assert "whether it continues from them is up to the program" in headway("status", "mine").out
    pulled = tmp_path / "pulled"
    assert headway("pull", "mine", "--to", pulled, "--only", "files").code == 0
    assert (pulled / "files/workdir/models/step-5.pt").read_bytes() == b"weights" * 5
    code = json.loads(headway("plan", "--json").out)["code"]
    assert headway("pull", "mine").code == 0
    assert (Path("mine") / "plan.json").exists()
    assert json.loads(headway("plan", "--json").out)["code"] == code, "a pulled run is not code to upload"
    gate.touch()
    resumed = headway("resume", "mine")
    assert resumed.code == 0, resumed.err
    assert "whether it continues from them is up to the program" in resumed.err
    assert [text.split(";")[0] for text in begun("mine")] == ["begins at 0", "begins at 5"]
    assert files_of("mine", "files/workdir/models/") == ["step-10.pt", "step-9.pt"]
    assert "kept 2 files" in resumed.out


def test_a_script_that_does_not_starts_from_the_beginning_and_destroys_nothing(headway: Headway) -> None:
    gate = write_job(RESTARTS)
    assert "starts from the beginning" in headway("plan").out
    assert headway("run", "-y", "-d", "--no-rehearse", "--name", "mine").code == 0
    running(headway, "mine")
    stopped = headway("stop", "mine")
    assert "it starts from the beginning" in stopped.out
    assert "continues" not in stopped.out
    assert stopped.out.splitlines()[-1] == "next: headway resume mine --from-beginning"
    gate.touch()
    refused = headway("resume", "mine", "-d")
    assert (refused.code, len(begun("mine"))) == (2, 1)
    assert "would start from the beginning: its program loads nothing that it has saved" in refused.err
    assert "headway resume mine --from-beginning" in refused.err
    resumed = headway("resume", "mine", "-d", "--from-beginning")
    assert "it starts from the beginning" in resumed.err
    assert "continues" not in resumed.out + resumed.err
    assert headway("logs", "mine", "-f").code == 0
    # It runs in the user's own folder, where nothing is removed.
    finds = [["begins at 0", " finds []"], ["begins at 0", " finds ['step-4.pt', 'step-5.pt']"]]
    assert [text.split(";")[:2] for text in begun("mine")] == finds
    assert files_of("mine", "files/earlier/a0001/models/") == ["step-4.pt", "step-5.pt"]
    assert files_of("mine", "files/workdir/models/") == ["step-10.pt", "step-9.pt"]


def kill_rank(headway: Headway, run: str) -> None:
    os.kill(int(headway("logs", run).out.partition("; process ")[2].split()[0]), signal.SIGKILL)


def test_a_killed_rank_starts_from_the_beginning_on_a_machine_that_costs_nothing(headway: Headway) -> None:
    gate = write_job(RESTARTS)
    assert headway("run", "-y", "-d", "--no-rehearse", "--name", "mine").code == 0
    running(headway, "mine")
    kill_rank(headway, "mine")
    running(headway, "mine", count=2)
    gate.touch()
    followed = headway("logs", "mine", "-f").out
    assert "it starts from the beginning" in followed
    assert "continues" not in followed
    # It runs in the user's own folder, where nothing is removed.
    finds = [["begins at 0", " finds []"], ["begins at 0", " finds ['step-4.pt', 'step-5.pt']"]]
    assert [text.split(";")[:2] for text in begun("mine")] == finds
    assert files_of("mine", "files/earlier/a0001/models/") == ["step-4.pt", "step-5.pt"]


def test_a_killed_rank_is_not_started_from_the_beginning_on_a_billed_machine(headway: Headway) -> None:
    gate = write_job(RESTARTS, price=2.0)
    assert headway("run", "-y", "-d", "--no-rehearse", "--name", "mine").code == 0
    running(headway, "mine")
    kill_rank(headway, "mine")
    wait_until(lambda: json.loads(headway("status", "mine", "--json").out)["state"] == "failed", "it has ended")
    status = headway("status", "mine").out
    assert "not restarted automatically" in status
    assert "headway resume mine --from-beginning" in status
    assert len(begun("mine")) == 1
    assert files_of("mine", "files/workdir/models/") == ["step-4.pt", "step-5.pt"]
    gate.touch()
    assert headway("resume", "mine").code == 2
    assert headway("resume", "mine", "--from-beginning").code == 0
    assert files_of("mine", "files/earlier/a0001/models/") == ["step-4.pt", "step-5.pt"]


def test_a_run_whose_code_has_changed_says_so_and_offers_the_changed_code(headway: Headway) -> None:
    gate = write_job(RESUMES)
    assert headway("run", "-y", "-d", "--no-rehearse", "--name", "mine").code == 0
    running(headway, "mine")
    assert headway("stop", "mine").code == 0
    gate.touch()
    Path("train.py").write_text(RESUMES.replace("begins at", "begins anew at"))
    Path("model.py").write_text("")
    recorded = headway("resume", "mine")
    assert "model.py, train.py changed since mine was started; the recorded code runs" in recorded.err
    assert "headway resume mine --code current" in recorded.err
    assert "begins at 5" in recorded.out


def test_a_resume_with_the_current_code_runs_it_and_is_not_called_exact(headway: Headway) -> None:
    gate = write_job(RESUMES)
    assert headway("run", "-y", "-d", "--no-rehearse", "--name", "mine").code == 0
    running(headway, "mine")
    assert headway("stop", "mine").code == 0
    gate.touch()
    Path("train.py").write_text(RESUMES.replace("begins at", "begins anew at"))
    resumed = headway("resume", "mine", "--code", "current")
    assert resumed.code == 0, resumed.err
    assert "with changed code (train.py): not an exact resume" in resumed.err
    assert "begins anew at 5" in resumed.out
    assert "copy" not in resumed.err
    assert "changed before attempt 2: train.py" in headway("status", "mine").out
    assert json.loads(headway("status", "mine", "--json").out)["code_changes"] == [
        {"attempt": 2, "files": ["train.py"]}
    ]


@pytest.mark.slow
def test_a_stop_that_has_to_kill_does_not_blame_the_memory(headway: Headway) -> None:
    Path("train.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('begins at 0', flush=True)\n"
        "time.sleep(600)\n"
    )
    Path("headway.yaml").write_text("name: job\nscript: train.py\n")
    assert headway("run", "-d", "--name", "mine").code == 0
    running(headway, "mine")
    stopped = headway("stop", "mine")
    assert "a checkpoint is written first" not in stopped.out + stopped.err
    said = headway("logs", "mine").out + headway("why", "mine").out + headway("status", "mine").out
    assert "memory" not in said
    assert "did not exit in time" in said
