"""Every shape of loop, bare and on 1, 2 and 3 ranks, killed and resumed: the same weights where they must be."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

from headway.spec import Cadence, Checkpoint
from tests.training.live import Case
from tests.training.parity_loops import KINDS, STREAMED, bare

pytestmark = [pytest.mark.slow, pytest.mark.torch]
CONFIG = {"accumulation": {"accumulate": 2}, "amp": {"precision": "bf16"}}


def begin(folder: Path, kind: str, ranks: int) -> Case:
    if kind == "streaming" and find_spec("datasets") is None:
        pytest.skip("Hugging Face datasets is not installed")
    return Case(folder, ranks, CONFIG.get(kind, {}), checkpoint=Checkpoint(every=Cadence(steps=1)))


def options(kind: str, **more: object) -> str:
    return json.dumps({"loop": "parity", "kind": kind, **more})


def weights(case: Case) -> Tensor:
    found = [torch.load(case.folder / f"weights-{rank}.pt") for rank in range(case.ranks)]
    assert all(torch.equal(found[0], other) for other in found), "all ranks hold the same model"
    return found[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_killed_and_resumed_run_equals_the_bare_loop(tmp_path: Path, kind: str, ranks: int) -> None:
    case = begin(tmp_path / "killed", kind, ranks)
    assert -9 in case.train(TEST_OPTIONS=options(kind, die_at=1 if ranks > 1 and kind in STREAMED else 3))
    assert case.train(TEST_OPTIONS=options(kind)) == [0] * ranks, case.log()
    assert "resuming from step" in case.log()
    found, expected = weights(case), bare(kind, ranks)
    if ranks == 1 and kind != "accumulation":
        assert torch.equal(found, expected)
    else:  # sums of parts are added in another order; bf16 rounds each part
        rtol, atol = (2e-2, 5e-3) if kind == "amp" else (1e-4, 1e-5)
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in STREAMED])
def test_a_kill_changes_no_bit_on_two_ranks(tmp_path: Path, kind: str) -> None:
    straight, killed = begin(tmp_path / "straight", kind, 2), begin(tmp_path / "killed", kind, 2)
    assert straight.train(TEST_OPTIONS=options(kind)) == [0, 0], straight.log()
    assert -9 in killed.train(TEST_OPTIONS=options(kind, die_at=5, die_rank=1))
    assert killed.train(TEST_OPTIONS=options(kind)) == [0, 0], killed.log()
    assert torch.equal(weights(straight), weights(killed))


def test_a_setting_that_is_not_valid_is_refused_on_all_ranks(tmp_path: Path) -> None:
    case = Case(tmp_path, 2, {"accumulate": "three"})
    assert 0 not in case.train(TEST_OPTIONS=options("single"))
    assert "accumulate: three is not a number of micro-batches" in case.log()
