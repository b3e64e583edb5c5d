"""A program that nobody changed is alive in `status`, `ps`, `watch`, `logs` and `compare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Headway
from tests.waiting import wait_until

TRAIN = """\
import os, pathlib, time
from tqdm import tqdm
for epoch in range(2):
    bar = tqdm(range(500), desc=f"Epoch {epoch + 1}/2", mininterval=0)
    for step in bar:
        bar.set_postfix(loss=1 / (1 + epoch * 500 + step))
    bar.close()
    print(f"\\x1b[32mepoch {epoch + 1}/2 val_accuracy={0.5 + epoch / 10}\\x1b[0m", flush=True)
    while not pathlib.Path(os.environ["GATE"]).exists():
        time.sleep(0.02)
"""


def write_job() -> Path:
    gate = Path("gate").absolute()
    Path("train.py").write_text(TRAIN)
    Path("headway.yaml").write_text(f"name: bars\nscript: train.py\nenv: {{GATE: '{gate}'}}\n")
    return gate


@pytest.mark.slow
def test_progress_and_metrics_of_an_unchanged_script_are_shown_by_every_verb(headway: Headway) -> None:
    gate = write_job()
    assert headway("run", "--name", "one", "--detach").code == 0
    wait_until(lambda: "500/1000, epoch 1/2" in headway("status", "one").out, "half of it is done")
    wait_until(lambda: "val_accuracy 0.5" in headway("status", "one").out, "its metrics are written")
    listed = headway("ps").out
    assert "PROGRESS" in listed
    assert "500/1000, epoch 1/2" in listed
    gate.touch()
    watched = headway("watch", "one").out
    assert "\x1b" not in watched
    assert headway("run", "--name", "two").code == 0
    shown = [line for line in headway("logs", "two").out.splitlines() if not line.startswith("headway:")]
    assert len(shown) == 4, shown
    assert shown[1] == "epoch 1/2 val_accuracy=0.5"
    found = json.loads(headway("status", "one", "--json").out)
    assert found["metrics"] == {"loss": 0.001, "val_accuracy": 0.6}
    assert (found["progress"]["step"], found["progress"]["steps"]) == (1000, 1000)
    compared = headway("compare", "one", "two").out
    assert "val_accuracy  0.6000" in compared
    assert "headway eval" not in compared
