"""Real training in containers: two nodes as one, taken away in the middle, and the same bits in the end.

No torch can be built into an image where these tests run: it is mounted from this machine.
"""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.core.types import State
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.planning import plan
from headway.spec import Cadence, Checkpoint, Image, Job, Mount, Resources
from tests.testbed.docker import BASE, TORCH_IS_MOUNTED, docker, docker_host
from tests.waiting import wait_until

__all__ = ["docker_host"]
pytestmark = [pytest.mark.docker, *TORCH_IS_MOUNTED]
SITE = sysconfig.get_path("purelib")
SCRIPT = """
import os, time
import torch
import headway
from headway.runtime import Loader
from torch.utils.data import TensorDataset

run = headway.start(config={"pause_s": 0.0})
dice = torch.Generator().manual_seed(1)
points = torch.randn(96, 4, generator=dice)
feed = Loader(TensorDataset(points, points.sum(1)), 8)
model = run.place(torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
run.restore(model=model, optimizer=optimizer, data=feed)
for epoch in run.epochs(3):
    for x, y in run.steps(feed):
        held_up = os.environ["HEADWAY_ATTEMPT"] == "1" and run.global_step >= 6
        time.sleep(run.config["pause_s"] if held_up else 0)
        loss = ((model(x).squeeze(-1) - y) ** 2).sum()
        run.step(optimizer, loss_sum=loss, weight=len(x))
        run.log(loss=loss / len(x))
        print(f"step {run.global_step} on {os.uname().nodename}")
run.finish()
import hashlib
state = b"".join(t.detach().numpy().tobytes() for t in model.state_dict().values())
print("digest", hashlib.sha256(state).hexdigest())
"""


@pytest.fixture(autouse=True)
def _daemon(docker_host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


def job(tmp_path: Path, *, nodes: int, pause_s: float = 0.0) -> Job:
    project = tmp_path / "project"
    project.mkdir(exist_ok=True)
    (project / "train.py").write_text(SCRIPT)
    (project / "requirements.txt").write_text("")
    return Job(
        name="spirals",
        script="train.py",
        config={"pause_s": pause_s},
        seed=3,
        outputs=str(tmp_path / "runs"),
        root=str(project),
        requirements="requirements.txt",
        image=Image(base=BASE),
        mounts=(Mount(path=SITE, at="/mnt/site", read_only=True),),
        env={"PYTHONPATH": "/mnt/site", "OMP_NUM_THREADS": "1"},
        resources=Resources(nodes=nodes),
        checkpoint=Checkpoint(every=Cadence(steps=5)),
    )


def digest(hold: RunHandle) -> str:
    (line,) = [line.text for line in hold.logs(rank=0) if line.text.startswith("digest ")]
    return line


def steps(hold: RunHandle) -> int:
    return sum(line.text.startswith("step ") for line in hold.logs(rank=0))


@pytest.fixture(name="taken_down")
def _taken_down() -> Iterator[list[RunHandle]]:
    holds: list[RunHandle] = []
    yield holds
    for hold in holds:
        hold.target.down(hold.target_handle)


@pytest.mark.ci
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_run_that_was_taken_away_ends_with_the_same_bits(
    tmp_path: Path, taken_down: list[RunHandle], nodes: int
) -> None:
    straight = lifecycle.launch(plan(job(tmp_path, nodes=nodes), on="docker"), name="straight")
    assert straight.outcome().status.state is State.FINISHED, list(straight.logs())
    hosts = {line.text.split()[-1] for line in straight.logs() if line.text.startswith("step ")}
    assert len(hosts) == nodes, "each node trained in a container of its own"

    broken = lifecycle.launch(plan(job(tmp_path, nodes=nodes, pause_s=2.0), on="docker"), name="broken", detach=True)
    taken_down.append(broken)
    wait_until(lambda: steps(broken) >= 7, "it trains")
    docker("stop", *broken.target_handle.details["containers"])
    assert broken.outcome().status.state is State.STOPPED
    done = steps(broken)
    assert done < 36
    again = lifecycle.resume(broken.url)
    taken_down.append(again)
    assert again.wait().status.state is State.FINISHED, [line.text for line in again.logs()][-20:]
    (restored,) = [event for event in again.folder.events() if event["kind"] == "restored" and event["attempt"] > 1]
    assert restored["step"] >= 5
    assert digest(again) == digest(straight)


def test_checkpoints_stay_on_the_host(tmp_path: Path) -> None:
    hold = lifecycle.launch(plan(job(tmp_path, nodes=1), on="docker"), name="kept")
    assert hold.outcome().status.state is State.FINISHED
    saved = sorted((tmp_path / "runs" / "kept" / "checkpoints").rglob("*.safetensors"))
    assert saved
    shutil.rmtree(tmp_path / "runs" / "kept")  # by this user: all of it is theirs
