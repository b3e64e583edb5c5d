"""The keys that say how to compute: precision, compile, accumulate, clip, channels_last. One meaning everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from headway.core.errors import BadJob
from headway.rundir.layout import RunFolder
from headway.storage import open_store
from headway.training import Loader
from headway.training.rank_info import standalone_info
from headway.training.settings import read_settings, to_channels_last
from tests.supervisor.supervised import quiet_environment
from tests.training.inside import Start, runs

pytestmark = pytest.mark.torch


@pytest.fixture(name="start")
def _start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    yield from runs(tmp_path, monkeypatch)


def train(start: Start, *, clip: float | None = None, **job: object) -> tuple[list[float], set[torch.dtype]]:
    """Two steps of a linear model; its weights, and the types that its forward computed in."""
    run = start(**job)
    torch.manual_seed(1)
    model, seen = run.place(nn.Linear(1, 1)), set()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for x in run.steps(Loader([torch.tensor([float(i)]) for i in range(8)], 4, shuffle=False)):
        with run.autocast():
            out = model(x)
            seen.add(out.dtype)
            loss = (out.float() - 5).square().mean()
        run.step(loss, optimizer, clip=clip)
    return [p.item() for p in model.parameters()], seen


def test_the_jobs_key_takes_precedence_over_config_and_the_scripts_clip(start: Start) -> None:
    assert train(start, precision="bf16")[1] == {torch.bfloat16}
    assert train(start, precision="fp32", config={"precision": "bf16"})[1] == {torch.float32}
    assert train(start, config={"precision": "bf16"})[1] == {torch.bfloat16}
    clipped, _ = train(start, clip=0.1)
    assert train(start, clip=0.1)[0] == clipped
    assert train(start, clip=100.0)[0] != clipped
    run_level = start(clip=0.1)
    assert read_settings(run_level.job).clip == 0.1


def test_the_jobs_clip_applies_to_scripts_that_pass_none_or_another(start: Start) -> None:
    clipped, _ = train(start, clip=0.1)

    def with_job(clip: float | None) -> list[float]:
        run = start(clip=0.1)
        torch.manual_seed(1)
        model = run.place(nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for x in run.steps(Loader([torch.tensor([float(i)]) for i in range(8)], 4, shuffle=False)):
            run.step((model(x) - 5).square().mean(), optimizer, clip=clip)
        return [p.item() for p in model.parameters()]

    assert with_job(None) == with_job(7.0) == clipped


def test_accumulate_of_the_job_splits_batches(start: Start) -> None:
    assert start(accumulate=4).accumulate == 4
    assert start(accumulate=4, config={"accumulate": 2}).accumulate == 4
    whole, _ = train(start)
    assert train(start, accumulate=2)[0] == pytest.approx(whole)


def test_tf32_computes_in_fp32_where_there_is_none_and_says_so(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    fp32, _ = train(start)
    assert train(start, precision="tf32") == (fp32, {torch.float32})
    assert "precision: tf32 is fp32 on cpu" in capfd.readouterr().err
    assert torch.get_float32_matmul_precision() == "highest"


def test_channels_last_changes_the_format_of_convolutions_only(start: Start) -> None:
    run = start(channels_last=True)
    model = run.place(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv3d(2, 3, 2), nn.Linear(3, 4)))
    flat, deep, linear = (layer.weight for layer in model)
    assert flat.is_contiguous(memory_format=torch.channels_last)
    assert deep.is_contiguous(memory_format=torch.channels_last_3d)
    assert linear.is_contiguous()
    out = model[0](torch.randn(2, 3, 8, 8))
    assert out.is_contiguous(memory_format=torch.channels_last)


def test_channels_last_keeps_the_values() -> None:
    layer = nn.Conv2d(3, 4, 3)
    before = layer.weight.detach().clone()
    to_channels_last(layer)
    assert torch.equal(layer.weight, before)


def test_a_script_started_by_hand_sets_them_in_its_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keys = {"precision": "bf16", "clip": 1, "accumulate": "auto", "channels_last": True}
    job = standalone_info(None, "train.py", {}, 0, keys).job
    assert (job.precision, job.clip, job.accumulate, job.channels_last, job.compile) == (
        "bf16",
        1.0,
        "auto",
        True,
        None,
    )
    again = standalone_info(str(tmp_path / "runs/train-1"), "train.py", {}, 0).job
    assert again.precision == "bf16", "the recorded job applies"
    with pytest.raises(BadJob, match="precision"):
        standalone_info(None, "train.py", {}, 0, {"precision": "int8"})


COMPILED = """
import sys
import torch, headway
from headway.runtime import Loader

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
    def forward(self, x):
        return self.layer(x).relu()

run = headway.start(sys.argv[1], compile=True, seed=3)
model = run.place(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = Loader(list(torch.arange(24.0).view(8, 3)), 4)
run.restore(model=model, optimizer=optimizer, data=loader)
for epoch in run.epochs(int(sys.argv[2])):
    for x in run.steps(loader):
        run.step((model(x) - 1).square().mean(), optimizer)
run.finish()
from torch._dynamo.utils import counters
hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
print(counters["stats"]["unique_graphs"], hits)
"""


@pytest.mark.slow
def test_a_restart_reuses_what_was_compiled_on_another_machine(tmp_path: Path) -> None:
    """The caches of torch on the machine itself are empty both times."""
    (tmp_path / "train.py").write_text(COMPILED)

    def once(epochs: int) -> tuple[list[int], str]:
        own = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / f"machine-{epochs}"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "train.py", str(tmp_path / "run"), str(epochs)],
            cwd=tmp_path, env={**quiet_environment(), **own}, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [int(word) for word in done.stdout.split()[-2:]], done.stderr

    first, _ = once(1)
    assert first[0] >= 1, "it was compiled"
    assert first[1] == 0
    kept = [entry.key for entry in RunFolder(open_store(str(tmp_path / "run"))).store.list("compiled/")]
    assert len(kept) == 1, os.listdir(tmp_path / "run")
    second, err = once(2)
    assert "compiling with what an earlier attempt has compiled" in err
    assert second[1] > 0, "nothing was compiled again"
