"""Parameters that do not learn are stored once per run, whatever happens to them, to the run, and to their files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway.core.errors import NoCheckpoint
from headway.spec import Cadence, Checkpoint
from headway.storage import open_store
from headway.training import Loader
from headway.training.checkpoint.frozen import FrozenFiles, fingerprints
from headway.training.checkpoint.reader import CheckpointReader
from headway.training.run import Run
from tests.training.inside import Start, runs

pytestmark = pytest.mark.torch

EVERY_STEP = Checkpoint(every=Cadence(steps=1), keep_last=2, keep_best=0)
FROZEN_BYTES = 512 * 1024 * 4


@pytest.fixture(name="start")
def _start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    yield from runs(tmp_path, monkeypatch)


class Adapted(nn.Module):
    """A large frozen layer with a small adapter beside it, as LoRA adds them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.base = nn.Linear(512, 1024, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(512, 2, bias=False), nn.Linear(2, 1024, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


def begin(start: Start) -> tuple[Run, Adapted, torch.optim.Optimizer, Loader]:
    run = start(checkpoint=EVERY_STEP)
    model = run.place(Adapted())
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    loader = Loader(list(torch.linspace(0, 1, 8 * 512).view(8, 512)), 2)
    run.restore(model=model, optimizer=optimizer, data=loader)
    return run, model, optimizer, loader


def train(parts: tuple[Run, Adapted, torch.optim.Optimizer, Loader], steps: int, change: Any = None) -> None:
    run, model, optimizer, loader = parts
    for number, x in enumerate(run.steps(loader), start=1):
        run.step(model(x).square().mean(), optimizer)
        if change is not None:
            change(model)
        if number == steps:
            break
    run._checkpoints.save()
    assert run._checkpoints.writer.drain()


def manifest(folder: Path, step: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"run/checkpoints/{step:08d}/manifest.json").read_text())
    return found


def frozen_files(folder: Path) -> list[Path]:
    return sorted((folder / "run/checkpoints/frozen").glob("*"))


def loaded(folder: Path, step: int) -> dict[str, Tensor]:
    state: dict[str, Tensor] = (
        CheckpointReader(open_store(str(folder / "run")), stale_for_s=0).load(step).state["model"]
    )
    return state


def test_a_checkpoint_refers_to_what_does_not_learn(start: Start, tmp_path: Path) -> None:
    parts = begin(start)
    train(parts, 2)
    (file,) = frozen_files(tmp_path)
    assert FROZEN_BYTES < file.stat().st_size < FROZEN_BYTES + 1000
    assert list(manifest(tmp_path, 2)["frozen"]) == [file.stem]
    own = sum(path.stat().st_size for path in (tmp_path / "run/checkpoints/00000002").iterdir())
    assert own < FROZEN_BYTES / 20, "the adapter and its optimizer state"
    for name, value in parts[1].state_dict().items():
        assert torch.equal(loaded(tmp_path, 2)[name], value)


def test_a_resumed_run_goes_on_with_the_same_file(start: Start, tmp_path: Path) -> None:
    train(begin(start), 2)
    (file,) = frozen_files(tmp_path)
    written = file.stat().st_mtime_ns
    parts = begin(start)
    assert parts[0].global_step == 2
    train(parts, 1)
    assert list(manifest(tmp_path, 3)["frozen"]) == [file.stem]
    assert frozen_files(tmp_path) == [file]
    assert file.stat().st_mtime_ns == written, "it was not written again"


@pytest.mark.parametrize("how", ["in place", "through .data", "two rows swapped"])
def test_what_moves_without_learning_is_saved_with_its_value(start: Start, tmp_path: Path, how: str) -> None:
    """A teacher's moving average, a target network: requires_grad=False, and changed all the same."""

    @torch.no_grad()
    def change(model: Adapted) -> None:
        if how == "in place":
            model.base.weight.mul_(0.99)
        elif how == "through .data":
            model.base.weight.data.mul_(0.99)
        else:
            model.base.weight[[0, 1]] = model.base.weight[[1, 0]]

    parts = begin(start)
    train(parts, 1)
    train(parts, 1, change)
    step, expected = parts[0].global_step, parts[1].base.weight.clone()
    assert torch.equal(loaded(tmp_path, step)["base.weight"], expected)
    again = begin(start)
    assert torch.equal(again[1].base.weight, expected)
    train(again, 1, change)
    assert torch.equal(loaded(tmp_path, again[0].global_step)["base.weight"], again[1].base.weight)


def test_what_begins_to_learn_is_saved_with_the_checkpoint(start: Start, tmp_path: Path) -> None:
    parts = begin(start)
    train(parts, 1)
    parts[1].base.requires_grad_(True)
    parts[2].add_param_group({"params": [parts[1].base.weight]})
    train(parts, 1)
    step = parts[0].global_step
    assert "frozen" not in manifest(tmp_path, step)
    assert torch.equal(loaded(tmp_path, step)["base.weight"], parts[1].base.weight)


def test_retention_keeps_what_is_referred_to_and_nothing_else(start: Start, tmp_path: Path) -> None:
    train(begin(start), 3)
    stray = tmp_path / "run/checkpoints/frozen" / ("0" * 64 + ".safetensors")
    stray.write_bytes(b"of a checkpoint that is gone")
    parts = begin(start)
    train(parts, 1)
    assert not stray.exists()
    kept = list((tmp_path / "run/checkpoints").glob("0*/manifest.json"))
    assert kept
    for path in kept:
        (name,) = json.loads(path.read_text())["frozen"]
        assert (tmp_path / f"run/checkpoints/frozen/{name}.safetensors").exists()


def test_a_manifest_that_cannot_be_read_keeps_every_file(start: Start, tmp_path: Path) -> None:
    train(begin(start), 3)
    stray = tmp_path / "run/checkpoints/frozen" / ("0" * 64 + ".safetensors")
    stray.write_bytes(b"perhaps of the damaged checkpoint")
    damaged = tmp_path / "run/checkpoints/00000003/manifest.json"
    body = damaged.read_text()
    damaged.write_text(body[:-20])
    files = FrozenFiles(open_store(str(tmp_path / "run")))
    files.prune(())
    assert stray.exists()
    damaged.write_text(body)
    files.prune(())
    assert [path.stem for path in frozen_files(tmp_path)] == list(manifest(tmp_path, 3)["frozen"])


def test_damage_to_a_frozen_file_is_named_and_never_loaded(start: Start, tmp_path: Path) -> None:
    train(begin(start), 1)
    (file,) = frozen_files(tmp_path)
    body = bytearray(file.read_bytes())
    body[-3] ^= 1
    file.write_bytes(body)
    with pytest.raises(NoCheckpoint, match=f"checksum of checkpoints/frozen/{file.name} differs"):
        begin(start)


def test_small_frozen_parameters_stay_in_the_checkpoint(start: Start, tmp_path: Path) -> None:
    run = start(checkpoint=EVERY_STEP)
    model = run.place(nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    loader = Loader(list(torch.ones(4, 4)), 2)
    run.restore(model=model, optimizer=optimizer, data=loader)
    for x in run.steps(loader):
        run.step(model(x).mean(), optimizer)
    run._checkpoints.save()  # one that was due while another was written is left out
    assert run._checkpoints.writer.drain()
    assert "frozen" not in manifest(tmp_path, 2)
    assert not frozen_files(tmp_path)


def test_fingerprints_see_single_bits_and_places() -> None:
    base = torch.arange(5000, dtype=torch.float32)
    swapped, flipped = base.clone(), base.clone()
    swapped[[3, 4000]] = swapped[[4000, 3]]
    flipped.view(torch.int32)[4321] ^= 1
    tensors = {"base": base, "copy": base.clone(), "swapped": swapped, "flipped": flipped}
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool):
        tensors[str(dtype)] = base.to(dtype)
    prints = fingerprints(tensors)
    assert prints["base"] == prints["copy"]
    others = [value for name, value in prints.items() if name != "copy"]
    assert len(set(others)) == len(others)
    assert fingerprints({"empty": torch.empty(0), "scalar": torch.tensor(1.0)})
