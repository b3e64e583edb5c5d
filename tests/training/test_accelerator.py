"""Every accelerator branch, on a fake device: placement, pinning, streams, precision, NaN, memory, randomness, waits.

docs/training-loop.md lists what has never met a real GPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import BadInput
from headway.training import devices
from tests.training import accelerator_scenarios
from tests.training.live import PATIENCE_S, _server

pytestmark = pytest.mark.torch


def results(folder: Path, on: str) -> dict[str, Any]:
    process = _server.Process(target=accelerator_scenarios.run_all, args=(folder, on))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


@pytest.fixture(scope="module", name="fake")
def _fake(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results(tmp_path_factory.mktemp("fake"), "fake")


@pytest.fixture(scope="module", name="cpu")
def _cpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results(tmp_path_factory.mktemp("cpu"), "cpu")


def waits(ledger: dict[str, Any]) -> dict[str, int]:
    """What made the host wait for the device in a step, but for the writing of metrics by another thread."""
    return {name: count for name, count in ledger.items() if name.startswith("blocked") and name != "blocked: tolist"}


def test_every_scenario_ran(fake: dict[str, Any], cpu: dict[str, Any]) -> None:
    for name, found in [*fake.items(), *cpu.items()]:
        assert "error" not in found, f"{name}: {found['error']}"
    assert fake.keys() == accelerator_scenarios.SCENARIOS.keys()


def test_model_and_batches_are_on_the_ranks_device(fake: dict[str, Any]) -> None:
    assert fake["straight"]["device"] == "fakegpu:0"
    assert fake["straight"]["placed"] == ["fakegpu:0"]
    assert {ledger["batch"] for ledger in fake["straight"]["ledgers"]} == {"fakegpu"}
    assert fake["second device"]["device"] == "fakegpu:1", "local rank 1 has the second device"


def test_a_run_on_the_device_has_the_bits_of_one_on_the_cpu_also_after_a_resume(
    fake: dict[str, Any], cpu: dict[str, Any]
) -> None:
    """Dropout draws from the device's generator, and snapshots hold what was there when they were taken."""
    assert fake["straight"]["weights"] == cpu["straight"]["weights"] == cpu["resumed"]["weights"]
    assert (fake["resumed"]["stopped"], fake["resumed"]["resumed at"]) == (True, 3)
    assert fake["resumed"]["weights"] == fake["straight"]["weights"]


def test_a_step_waits_once_for_its_forward_pass_and_never_for_the_device_to_be_done(fake: dict[str, Any]) -> None:
    steady = fake["straight"]["ledgers"][2:]
    assert [waits(ledger) for ledger in steady] == [{}] * len(steady)
    own = [ledger["event waits"] for ledger in steady]
    assert min(own) == 1, "for the loss's flag; a second one is the writer's, for a snapshot"
    assert max(own) <= 2


def test_several_ranks_do_not_wait_for_the_reduction_either(fake: dict[str, Any]) -> None:
    steady = fake["several ranks"]["ledgers"][1:]
    assert [waits(ledger) for ledger in steady] == [{}] * len(steady)
    assert {ledger["event waits"] for ledger in steady} <= {1, 2}, "the second one is the writer's"


def test_precision_is_that_of_the_job(fake: dict[str, Any]) -> None:
    assert {ledger["dtype"] for ledger in fake["straight"]["ledgers"]} == {"torch.float32"}
    assert (fake["bf16"]["dtypes"], fake["bf16"]["scale"], fake["bf16"]["finite"]) == (["torch.bfloat16"], None, True)
    assert (fake["fp16"]["dtypes"], fake["fp16"]["finite"]) == (["torch.float16"], True)
    assert fake["fp16"]["scale"] > 0
    assert waits(fake["fp16"]["last"]) == {"blocked: aten::_local_scalar_dense": 1}, "torch's scaler reads its flag"


def test_a_loss_that_is_not_finite_is_never_applied(fake: dict[str, Any]) -> None:
    assert fake["nan skip"] == {"failed": "", "steps": 3, "finite": True}
    assert "batch 2: the loss is not finite" in fake["nan stop"]["failed"]
    assert fake["nan stop"]["steps"] == 1


def test_memory_that_runs_out_asks_for_more_micro_batches(fake: dict[str, Any]) -> None:
    assert fake["out of memory"]["told"] == [{"kind": "failed", "step": 0, "cut_to": 2}]
    assert "accumulate=2" in fake["out of memory"]["hint"]


def test_random_numbers_on_the_device_depend_on_the_step_alone(fake: dict[str, Any]) -> None:
    assert fake["generators"] == {"same": True, "other": True}


def test_two_ranks_on_one_device_are_refused_by_number() -> None:
    devices.require_own_device(["", ""])  # CPUs are shared
    devices.require_own_device(["host-a cuda 0", "host-a cuda 1", "host-b cuda 0"])
    with pytest.raises(BadInput, match="ranks 1 and 2 share one cuda device") as caught:
        devices.require_own_device(["host-a cuda 0", "host-a cuda 1", "host-a cuda 1"])
    assert "--nproc-per-node" in str(caught.value)


def test_a_device_without_collectives_is_refused_with_what_to_do(fake: dict[str, Any]) -> None:
    assert "torch has no collectives for fakegpu devices" in fake["second device"]["refused"]
    assert "resources.processes: 1" in fake["second device"]["refused"]
