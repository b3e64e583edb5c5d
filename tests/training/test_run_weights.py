"""Starting from weights made elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from headway.bundle.format import BundleParts
from headway.core.errors import BadInput, NoCheckpoint
from headway.training.checkpoint.init_weights import initialise, load_torch_file, weights_at
from tests.training.inside import Start, runs


@pytest.fixture(name="start")
def _start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    yield from runs(tmp_path, monkeypatch)


def net(width: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), nn.Linear(width, 1))


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_from_a_bundle_a_safetensors_file_and_a_foreign_file(tmp_path: Path) -> None:
    model = net()
    parts = BundleParts(recipe="x", name="x", config={}, weights=model.state_dict())
    parts.write(tmp_path / "bundle")
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    torch.save(model.state_dict(), tmp_path / "m.pth")
    torch.save(
        {"epoch": 3, "model_state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, tmp_path / "m.pt"
    )
    for name in ("bundle", "m.safetensors", "m.pth", "m.pt"):
        other = net()
        assert not same(model, other)
        initialise(other, str(tmp_path / name))
        assert same(model, other), name


def test_from_another_run_but_only_at_the_very_beginning(start: Start, tmp_path: Path) -> None:
    first = start()
    model = first.place(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first.restore(model=model, optimizer=optimizer)
    for x in first.steps([torch.ones(1, 2)]):
        first.step(model(x).sum(), optimizer)
    first.finish()
    (tmp_path / "run").rename(tmp_path / "donor")
    for number in range(2):
        run = start(init_from=str(tmp_path / "donor"))
        heir = run.place(net())
        optimizer = torch.optim.SGD(heir.parameters(), lr=0.1)
        step = run.restore(model=heir, optimizer=optimizer)
        assert step == number
        assert same(model, heir) == (step == 0)
        for x in run.steps([torch.ones(1, 2)]):
            run.step(heir(x).sum(), optimizer)
        run.finish()


def test_what_does_not_fit_is_listed(tmp_path: Path) -> None:
    save_file(
        {"0.weight": torch.zeros(9, 2), "0.bias": torch.zeros(3), "extra": torch.zeros(1)}, tmp_path / "m.safetensors"
    )
    with pytest.raises(BadInput) as error:
        initialise(net(), str(tmp_path / "m.safetensors"))
    assert "0.weight has shape (9, 2), the model (3, 2)" in str(error.value)
    assert "1.bias is missing" in str(error.value)
    assert "extra is not in the model" in str(error.value)


def test_a_foreign_file_cannot_run_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> object:
            return Path.touch, (tmp_path / "owned",)

    torch.save({"weights": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(BadInput, match="not a file of plain weights"):
        weights_at(str(tmp_path / "evil.pth"))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("body", [b"", b"nonsense", b"PK\x03\x04 broken"])
def test_a_file_that_is_no_weights_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(BadInput):
        load_torch_file(body, "m.pth")


def test_a_damaged_safetensors_file_is_no_beginning(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}")
    with pytest.raises(NoCheckpoint):
        weights_at(str(tmp_path / "m.safetensors"))


def test_weights_that_are_not_there_are_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no weights to start from"):
        weights_at(str(tmp_path / "m.pth"))
