"""A project runs in its own folder on this machine: real runs through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import pathlib, sys, time
print("folder", pathlib.Path.cwd(), "data", pathlib.Path("data/rows.txt").read_text(), flush=True)
pathlib.Path("checkpoints").mkdir(exist_ok=True)
pathlib.Path("checkpoints/last.pt").write_text(sys.argv[1] if len(sys.argv) > 1 else "first")
while pathlib.Path("wait").exists():
    time.sleep(0.02)
if pathlib.Path("fail").exists():
    raise ValueError("bad shape")
"""


@pytest.fixture(name="project")
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    (project / "data/rows.txt").write_text("42")
    (project / ".gitignore").write_text("data/\ncheckpoints/\nwait\nfail\n")
    (project / "train.py").write_text(SCRIPT)
    (project / "headway.yaml").write_text("name: own\nscript: train.py\nretries: 0\n")
    return project


def headway(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headway", *words]
    return subprocess.run(command, cwd=project, env=os.environ, capture_output=True, text=True, timeout=120)


def test_relative_paths_work_ignored_data_is_there_and_the_users_files_stay(project: Path) -> None:
    done = headway(project, "run", "--name", "one")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"folder {project} data 42" in done.stdout
    assert (project / "checkpoints/last.pt").read_text() == "first"
    assert (project / "runs/one/files/workdir/checkpoints/last.pt").read_text() == "first"
    assert not (project / "runs/one/files/workdir/data").exists()


def test_a_traceback_names_the_users_own_file(project: Path) -> None:
    (project / "fail").write_text("")
    done = headway(project, "run", "--name", "one")
    assert done.returncode == 1
    assert f'File "{project}/train.py", line' in done.stdout


@pytest.mark.slow
def test_a_second_run_gets_a_copy_with_the_data_and_says_so(project: Path) -> None:
    (project / "wait").write_text("")
    first = headway(project, "run", "--name", "one", "--detach")
    assert first.returncode == 0, first.stderr
    second = headway(project, "run", "--name", "two", "--detach")
    assert "one runs in" in second.stdout + second.stderr
    assert "so this runs in a copy" in second.stdout + second.stderr
    (project / "wait").unlink()
    for name in ("one", "two"):
        headway(project, "logs", name, "--follow")
        status = json.loads(headway(project, "status", name, "--json").stdout)
        assert status["state"] == "finished", status
    log = headway(project, "logs", "two").stdout
    assert "data 42" in log
    assert f"folder {project}/runs/two" in log
    assert "not saved" not in log


def test_a_resume_runs_the_recorded_code_in_a_copy_after_the_code_has_changed(project: Path) -> None:
    (project / "fail").write_text("")
    assert headway(project, "run", "--name", "one").returncode == 1
    (project / "fail").unlink()
    (project / "train.py").write_text("print('other code')\n")
    resumed = headway(project, "resume", "one", "--yes")
    assert "train.py in" in resumed.stdout + resumed.stderr
    assert "has changed since it was planned" in resumed.stdout + resumed.stderr
    assert "other code" not in resumed.stdout
    assert (project / "train.py").read_text() == "print('other code')\n"


@pytest.mark.slow
def test_a_file_that_was_changed_since_is_not_overwritten_by_a_restore(project: Path) -> None:
    source = SCRIPT.replace('sys.argv[1] if len(sys.argv) > 1 else "first"', '"first"')
    (project / "train.py").write_text(f"# resume_from_checkpoint\nimport torch_load_stub as torch\n{source}")
    (project / "torch_load_stub.py").write_text("def load(path):\n    return path\n")
    (project / "fail").write_text("")
    assert headway(project, "run", "--name", "one").returncode == 1
    (project / "runs/one/local/workdir.json").unlink(missing_ok=True)
    (project / "checkpoints/other.pt").write_text("mine")
    (project / "fail").unlink()
    headway(project, "resume", "one", "--yes")
    assert (project / "checkpoints/other.pt").read_text() == "mine"


def test_what_this_machine_does_not_do_is_refused_at_plan_time(project: Path) -> None:
    text = (project / "headway.yaml").read_text()
    (project / "headway.yaml").write_text(text + "setup: [apt-get install x]\nmounts: [{nfs: 's:/e', at: /nowhere}]\n")
    done = headway(project, "plan")
    assert done.returncode == 2
    assert "setup commands are not run on this machine" in done.stderr
    assert "nothing is mounted at /nowhere" in done.stderr
    fixed = headway(project, "plan", "--set", "setup=[]", "--set", "mounts=[]")
    assert fixed.returncode == 0, fixed.stderr


COUNTS = """
import json, pathlib, sys
print("arguments", sys.argv[1:], flush=True)
last = pathlib.Path("checkpoints/last.pt")
if pathlib.Path("early").exists():
    raise ValueError("before the first checkpoint")
last.parent.mkdir(exist_ok=True)
last.write_text(str(int(last.read_text()) + 1 if "--resume" in sys.argv else 1))
pathlib.Path("runs/exp").mkdir(parents=True, exist_ok=True)
pathlib.Path("runs/exp/last.pt").write_text("beside the run folders")
pathlib.Path("results.json").write_text(json.dumps({"accuracy": 1.0}))
if pathlib.Path("fail").exists():
    raise ValueError("after it")
"""
RESUME = "resume: {args: [--resume], if_exists: checkpoints/last.pt}\n"


@pytest.fixture(name="counts")
def _counts(project: Path) -> Path:
    (project / "train.py").write_text(COUNTS)
    with (project / "headway.yaml").open("a") as job:
        job.write(RESUME)
    with (project / ".gitignore").open("a") as ignored:
        ignored.write("early\n")
    return project


@pytest.mark.slow
def test_a_resume_after_one_in_a_copy_continues_from_that_one(counts: Path) -> None:
    (counts / "fail").touch()
    saved = counts / "runs/one/files/workdir/checkpoints/last.pt"
    assert headway(counts, "run", "--name", "one").returncode == 1
    (counts / "train.py").write_text(COUNTS + "# changed")
    assert "so this runs in a copy" in "".join(headway(counts, "resume", "one").stderr)
    assert (saved.read_text(), (counts / "checkpoints/last.pt").read_text()) == ("2", "1")
    (counts / "train.py").write_text(COUNTS)
    resumed = headway(counts, "resume", "one")
    assert "checkpoints/last.pt" in resumed.stderr, resumed.stderr
    assert "is older than the one that this run has saved, so this runs in a copy" in resumed.stderr
    assert (saved.read_text(), (counts / "checkpoints/last.pt").read_text()) == ("3", "1")


@pytest.mark.slow
def test_a_run_does_not_continue_from_another_runs_checkpoint(counts: Path) -> None:
    assert headway(counts, "run", "--name", "one").returncode == 0
    (counts / "early").touch()
    assert headway(counts, "run", "--name", "two").returncode == 1
    (counts / "early").unlink()
    resumed = headway(counts, "resume", "two")
    assert resumed.returncode == 0, resumed.stderr
    assert "arguments []" in resumed.stdout
    assert "this run has not written checkpoints/last.pt, so the program starts without --resume" in resumed.stdout
    (counts / "fail").touch()
    assert headway(counts, "run", "--name", "three").returncode == 1
    resumed = headway(counts, "resume", "three")
    assert "arguments ['--resume']" in resumed.stdout
    assert "resume: adds --resume" in resumed.stdout


@pytest.mark.slow
def test_a_file_is_kept_although_the_run_before_wrote_the_same(counts: Path) -> None:
    for name in ("one", "two"):
        assert headway(counts, "run", "--name", name).returncode == 0
        kept = counts / f"runs/{name}/files/workdir"
        assert sorted(path.name for path in kept.iterdir()) == ["checkpoints", "results.json", "runs"]
        assert [path.name for path in (kept / "runs").iterdir()] == ["exp"]
