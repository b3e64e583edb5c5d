"""At the end of its budget a run saves, exports the best so far, and `headway` says so with an exit code of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.cli.dispatch import locate
from headway.rundir.layout import RunFolder
from headway.storage import open_store
from tests.cli.conftest import Headway

pytestmark = [pytest.mark.slow, pytest.mark.torch]
SCRIPT = """\
import time
import torch
import headway

class Feed:
    fingerprint = "ones"
    def __len__(self): return 100_000
    def batch(self, epoch, step, part, parts): return torch.ones(2, 4)

class Weights:
    def write(self, folder): (folder / "weights.txt").write_text(str(model.weight.sum().item()))

run = headway.start()
model = run.place(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run.on_export(Weights)
run.restore(model=model, optimizer=optimizer)
for epoch in run.epochs(1):
    for batch in run.steps(Feed()):
        time.sleep(0.02)
        run.step(optimizer, loss_sum=model(batch).square().sum(), weight=2)
run.finish()
"""


def test_a_spent_budget_exports_the_best_ends_with_3_and_can_be_raised(headway: Headway) -> None:
    pytest.importorskip("torch")
    Path("train.py").write_text(SCRIPT)
    Path("headway.yaml").write_text(
        "name: job\nscript: train.py\nretries: 0\nbudget: {usd: 0.03}\n"
        "targets: {local: {kind: local, price: 2.4}}\nenv: {OMP_NUM_THREADS: '1'}\n"  # 45 seconds
    )
    said = headway("run", "-y", "--no-rehearse", "--name", "short")
    assert said.code == 3, said.out + said.err
    folder = RunFolder(open_store(locate("short")))
    assert folder.store.stat("export/weights.txt").size > 0
    ended = folder.ended()
    assert ended is not None
    assert ended["state"] == "budget"
    assert ended["spent_s"] <= 45.0 + 5.0
    assert any(event["kind"] == "checkpoint" for event in folder.events())
    refused = headway("resume", "short")
    assert refused.code == 2
    assert "--budget-hours" in refused.err
    assert headway("resume", "short", "--budget-usd", "0.05").code == 3
    assert [event["kind"] for event in folder.events()].count("restored") == 1
