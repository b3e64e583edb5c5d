"""Each accelerator gets a torch that has kernels for it."""

from __future__ import annotations

import pytest

from headway.packaging.torch_builds import AMD, CAPABILITY, accelerator_of, torch_for
from headway.pricing.table import PEAK_TFLOPS

# Oldest and newest compute capability of the default wheels, as PyTorch lists them: (torch, CUDA) -> (from, to).
WHEELS = {"2.6": ((5, 0), (9, 0)), "2.8": ((7, 0), (12, 0)), "2.11": ((7, 5), (12, 0)), "2.13": ((7, 5), (12, 0))}


def allowed(requirement: str, version: str) -> bool:
    number = tuple(map(int, version.split(".")))
    if requirement.startswith("torch<"):
        return number < tuple(map(int, requirement.removeprefix("torch<").split(".")))
    return not requirement or number >= tuple(map(int, requirement.removeprefix("torch>=").split(".")))


@pytest.mark.parametrize("kind", sorted(PEAK_TFLOPS))
def test_every_accelerator_of_the_price_table_has_a_torch_with_kernels(kind: str) -> None:
    if kind in AMD:
        return
    chosen = [version for version in WHEELS if allowed(torch_for(kind), version)]
    assert chosen
    for version in chosen:
        oldest, newest = WHEELS[version]
        assert oldest <= CAPABILITY[kind], f"torch {version} on {kind}"
        assert CAPABILITY[kind][0] <= newest[0], f"torch {version} on {kind}"


def test_the_kind_is_found_in_every_form_of_a_recorded_job() -> None:
    assert accelerator_of({"resources": {"accelerator": {"kind": "V100", "count": 2}}}) == "V100"
    assert accelerator_of({"resources": {"accelerator": "T4:1"}}) == "T4"
    assert accelerator_of({"resources": {}}) is None
    assert accelerator_of({}) is None
