"""A script without a supervisor: `python train.py` makes its own run folder, and can be started again in it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from headway.core.errors import BadJob
from headway.rundir.layout import RunFolder
from headway.rundir.lease import spent_s
from headway.spec import Cadence, Checkpoint
from headway.storage import open_store
from headway.training.rank_info import standalone_info
from tests.supervisor.supervised import quiet_environment

pytestmark = pytest.mark.torch

SCRIPT = """
import os, signal, sys, time
import torch
import headway
from headway.runtime import Loader

run = headway.start(seed=5, config={"lr": 0.1})
model = run.place(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=run.config["lr"])
feed = Loader([torch.tensor([i / 8]) for i in range(8)], 2)
run.restore(model=model, optimizer=optimizer, data=feed)
for epoch in run.epochs(3):
    for x in run.steps(feed):
        run.step(optimizer, loss_sum=((model(x) - 1) ** 2).sum(), weight=len(x))
        run.log(loss=1.0)
        if "stop" in sys.argv and run.global_step == 5:
            os.kill(os.getpid(), signal.SIGINT)
        if "wait" in sys.argv:
            print("here", flush=True)
            time.sleep(60)
run.finish()
print("weights", *[value.item().hex() for value in model.parameters()], "rank", run.world.rank, "of", run.world.size)
"""


def python(folder: Path, *args: str, **env: str) -> subprocess.Popen[str]:
    (folder / "my_train.py").write_text(textwrap.dedent(SCRIPT))
    return subprocess.Popen(
        [sys.executable, "my_train.py", *args],
        cwd=folder,
        env={**quiet_environment(), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    return out, err


@pytest.mark.slow
def test_a_script_started_by_hand_can_be_stopped_and_goes_on_in_its_folder(tmp_path: Path) -> None:
    straight, straight_err = finished(python(tmp_path))
    assert "runs/my-train-1" in straight_err
    _, err = finished(python(tmp_path, "stop"), 143)
    assert "runs/my-train-2" in err
    assert "stopped at step 5" in err
    assert "Traceback" not in err
    assert "is unfinished" not in err
    resumed, err = finished(python(tmp_path, HEADWAY_RUN_URL="runs/my-train-2"))
    assert "resuming from step 5" in err
    assert resumed == straight
    folder = RunFolder(open_store(str(tmp_path / "runs/my-train-2")))
    assert [record["step"] for record in folder.metrics()] == list(range(1, 13))
    assert [event["state"] for event in folder.events() if event["kind"] == "ended"] == ["stopped", "finished"]
    assert folder.plan().job["config"] == {"lr": 0.1}
    began = [event["spent_s"] for event in folder.events() if event["kind"] == "attempt"]
    ended = [event["spent_s"] for event in folder.events() if event["kind"] == "ended"]
    assert 0.0 <= began[0] < ended[0] <= began[1] < ended[1] <= spent_s(folder) + 0.001, "a total over both starts"


@pytest.mark.slow
def test_a_second_start_in_the_same_folder_is_refused_and_the_unfinished_one_is_pointed_out(tmp_path: Path) -> None:
    first = python(tmp_path, "wait")
    assert first.stdout is not None
    assert first.stdout.readline() == "here\n"
    _, err = finished(python(tmp_path, HEADWAY_RUN_URL="runs/my-train-1"), 2)
    assert "this run is already running" in err
    assert "Traceback" not in err
    first.kill()
    first.communicate()
    _, err = finished(python(tmp_path))
    assert "set HEADWAY_RUN_URL=runs/my-train-1 to resume it" in err


@pytest.mark.slow
def test_torchrun_style_ranks_agree_on_one_folder(tmp_path: Path) -> None:
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29871", "OMP_NUM_THREADS": "1"}
    ranks = [python(tmp_path, RANK=str(rank), LOCAL_RANK=str(rank), **world) for rank in range(2)]
    printed = [finished(rank)[0].split() for rank in ranks]
    assert printed[0][:3] == printed[1][:3]
    assert [words[-1] for words in printed] == ["2", "2"]
    assert sorted(os.listdir(tmp_path / "runs")) == ["my-train-1"]
    last = json.loads((tmp_path / "runs/my-train-1/checkpoints/last.json").read_text())
    assert last["step"] == 12


@pytest.mark.slow
def test_a_master_port_that_is_taken_is_said_with_its_code(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        world = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        _, err = finished(python(tmp_path, OMP_NUM_THREADS="1", **world), code=2)
    assert f"MASTER_PORT: port {port}, for the rendezvous of the ranks, is not available: Address already in use" in err
    assert "fix: stop the process that listens there" in err
    assert "Traceback" not in err


def test_imports_stay_light() -> None:
    """`import headway.training` costs nothing; torch comes with `start`."""
    code = "import sys, headway.training; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_what_the_user_can_mend_is_said_in_one_line_with_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("import headway\nheadway.start().restore(rate=0.1)\n")
    ended = subprocess.run(
        [sys.executable, "wrong.py"], cwd=tmp_path, env=dict(quiet_environment()), capture_output=True, text=True
    )
    assert ended.returncode == 2, ended.stderr
    assert "rate (float) has no state_dict" in ended.stderr
    assert "Traceback" not in ended.stderr
    failed = [
        event for event in RunFolder(open_store(str(tmp_path / "runs/wrong-1"))).events() if event["kind"] == "failed"
    ]
    assert [event["step"] for event in failed] == [0]


def test_a_script_started_by_hand_sets_what_a_job_file_sets(tmp_path: Path) -> None:
    settings = {"checkpoint": {"every": "500 steps", "keep_last": 2}, "exact": True}
    info = standalone_info(str(tmp_path / "run"), "train.py", {"precision": "bf16"}, 3, settings)
    assert info.job.checkpoint == Checkpoint(every=Cadence(steps=500), keep_last=2)
    assert info.job.exact
    recorded = standalone_info(str(tmp_path / "run"), "train.py", {}, 0)
    assert recorded.job == info.job, "the recorded job applies"


def test_settings_that_are_not_valid_are_refused_as_in_a_job_file(tmp_path: Path) -> None:
    with pytest.raises(BadJob, match=r"checkpoint\.every"):
        standalone_info(str(tmp_path / "run"), "train.py", {}, 0, {"checkpoint": {"every": "sometimes"}})
