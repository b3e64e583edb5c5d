"""Machines and accelerators: what is chosen, what is refused, and what to write instead."""

from __future__ import annotations

import pytest

from headway.pricing.quote import machine_shape
from headway.pricing.table import MACHINE, load
from headway.spec import Accelerator, Job, Resources
from headway.spec.units import ACCELERATORS as NAMES
from headway.targets.vertex import machines
from headway.targets.vertex.machines import ACCELERATORS, MACHINES, attachable, machine_name, problems
from tests.servers import vertex_rules


def wanted(text: str) -> Accelerator | None:
    kind, _, count = text.partition(":")
    return Accelerator(kind=kind, count=int(count or 1)) if text else None


@pytest.mark.parametrize(
    ("machine", "accelerator", "fix"),
    [
        ("n1-standard-8", "T4:3", "accelerator: T4:1 (it takes 1 or 2 or 4)"),
        ("n1-standard-32", "T4:1", "accelerator: T4:2 (it takes 2 or 4)"),
        ("n1-standard-16", "V100:1", "accelerator: V100:2 (it takes 2 or 4 or 8)"),
        ("n1-standard-8", "L4:1", "machine: g2-standard-4"),
        ("n1-standard-64", "P100:4", "machine: n1-highmem-2"),
        ("g2-standard-8", "", "accelerator: L4:1"),
        ("g2-standard-8", "L4:2", "accelerator: L4:1; or machine: g2-standard-24"),
        ("a2-highgpu-4g", "A100:2", "accelerator: A100:4; or machine: a2-highgpu-2g"),
        ("n1-standrd-8", "", "machine: n1-standard-8"),
        ("n1-standard-2", "", "machine: n1-standard-4"),
        ("n1-standard-12", "", "machine: n1-standard-16"),
        ("n1-standard-200", "", "machine: n1-standard-96"),
        ("n1-standard-8", "RTX4090:1", "one of A100"),
    ],
)
def test_a_pair_that_vertex_refuses_is_refused_here_with_what_to_write(
    machine: str, accelerator: str, fix: str
) -> None:
    (problem,) = problems(machine, wanted(accelerator), where="resources")
    assert fix in problem.fix, problem
    assert problem.where.startswith("resources.")


@pytest.mark.parametrize(
    "pair",
    [("n1-standard-8", "T4:1"), ("n1-highmem-96", "T4:4"), ("a3-highgpu-8g", "H100:8"), ("g2-standard-96", "L4:8"),
     ("n1-standard-4", ""), ("e2-standard-4", "")],
)  # fmt: skip
def test_a_pair_that_vertex_has_is_taken(pair: tuple[str, str]) -> None:
    assert not list(problems(pair[0], wanted(pair[1]), where="resources"))


def test_a_family_younger_than_the_table_is_left_to_vertex() -> None:
    assert machines.is_unknown_family("z9-highgpu-8g")
    assert not list(problems("z9-highgpu-8g", wanted("B200:8"), where="resources"))
    assert machines.cpus_of("z9-standard-44") == 44


def test_the_table_agrees_with_the_strict_servers_own() -> None:
    for name, (kind, count) in vertex_rules.BUILT_IN.items():
        built_in = MACHINES[name].built_in
        assert built_in is not None
        assert (ACCELERATORS[built_in.kind], built_in.count) == (kind, count)
    for kind, sizes in vertex_rules.ATTACHED.items():
        short = next(name for name, full in ACCELERATORS.items() if full == kind)
        for size, counts in sizes.items():
            assert attachable(f"n1-standard-{size}", short) == counts, (kind, size)
    assert set(MACHINES) >= vertex_rules.CPUS


def test_every_accelerator_is_one_that_a_job_file_may_name() -> None:
    assert set(ACCELERATORS) <= set(NAMES)


@pytest.mark.parametrize(
    ("resources", "machine"),
    [
        (Resources(), "n1-standard-4"),
        (Resources(cpus=16), "n1-standard-16"),
        (Resources(memory=100_000_000_000), "n1-standard-32"),
        (Resources(accelerator=Accelerator(kind="T4")), "n1-standard-8"),
        (Resources(accelerator=Accelerator(kind="L4", count=4)), "g2-standard-48"),
        (Resources(accelerator=Accelerator(kind="A100", count=8)), "a2-highgpu-8g"),
        (Resources(machine="c2-standard-30"), "c2-standard-30"),
    ],
)
def test_a_machine_is_chosen_where_the_job_names_none(resources: Resources, machine: str) -> None:
    assert machine_name(resources) == machine
    assert not list(problems(machine, resources.accelerator, where="resources"))


@pytest.mark.parametrize(
    "accelerator",
    ["", "T4:1", "T4:2", "T4:4", "V100:1", "V100:8", "P100:4", "L4:1", "L4:2", "A100:1", "A100-80GB:4", "H100:8"],
)
@pytest.mark.parametrize(
    ("cpus", "memory"), [(None, None), (2, 2 * 2**30), (12, None), (None, 100 * 2**30), (40, None)]
)
def test_the_machine_is_the_one_that_the_price_is_reckoned_with(
    accelerator: str, cpus: int | None, memory: int | None
) -> None:
    resources = Resources(accelerator=wanted(accelerator), cpus=cpus, memory=memory)
    machine = machine_shape(Job(name="j", recipe="captioning", resources=resources))[0]
    assert machine_name(resources) == machine
    assert machine in MACHINES, "one that Vertex AI trains on"


def test_machines_are_as_large_as_the_price_table_says() -> None:
    table, seen = load(), 0
    for machine in MACHINES.values():
        for row in table.rows(MACHINE, machine.name)[:1]:
            seen += 1
            assert (row.vcpus, round(row.memory_gib, 1)) == (machine.cpus, machine.memory_gib), machine.name
    assert seen > 60
