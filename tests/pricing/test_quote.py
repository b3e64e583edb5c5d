"""What is billed: machines and accelerators added up, for all nodes, on demand and spot, where the job says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headway.pricing.quote import Quote, compare_regions, quote, region_of
from headway.pricing.table import accelerators_of, load, machine_for, machine_with, update
from headway.spec import Job, Resources
from headway.spec.model import Accelerator
from headway.spec.units import ACCELERATORS

JOB = Job(name="j", script="t.py", resources=Resources(accelerator=Accelerator(kind="T4"), machine="n1-standard-8"))
EAST = {"region": "us-east1"}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


def billed(job: Job, kind: str, **options: object) -> Quote:
    found = quote(job, kind, options)
    assert found is not None
    return found


def on(job: Job, **changes: object) -> Job:
    return replace(job, resources=replace(job.resources, **changes))  # type: ignore[arg-type]


def test_machine_and_accelerator_are_added_up() -> None:
    found = billed(JOB, "kubernetes", **EAST)
    assert found.price.usd == pytest.approx(0.73)
    assert found.price.spot_usd == pytest.approx(0.17836 + 0.1905)
    assert [item.what for item in found.items] == ["n1-standard-8", "1 × T4"]


def test_all_nodes_are_billed() -> None:
    assert billed(on(JOB, nodes=3), "kubernetes", **EAST).price.usd == pytest.approx(3 * 0.73)


def test_vertex_bills_a_fee_that_is_a_setting() -> None:
    assert billed(JOB, "vertex", **EAST).price.usd == pytest.approx(0.73 * 1.15)
    assert billed(JOB, "vertex", **EAST, management_factor=1.0).price.usd == pytest.approx(0.73)
    published = billed(on(JOB, accelerator=None, machine="n1-standard-4"), "vertex", **EAST)
    assert published.price.usd == pytest.approx(0.21849885, rel=1e-3)


def test_spot_is_what_is_billed_where_the_job_asks_for_it() -> None:
    assert billed(on(JOB, spot=True), "vertex", **EAST).billed_usd == pytest.approx(1.15 * (0.17836 + 0.1905))


def test_disks_are_billed_besides() -> None:
    with_disk = billed(on(JOB, disk=100_000_000_000), "vertex", **EAST)
    assert with_disk.disk_usd == pytest.approx(100 * 0.10 / 730)
    fast = billed(on(JOB, disk=100_000_000_000), "vertex", **EAST, disk_type="pd-ssd")
    assert fast.disk_usd == pytest.approx(100 * 0.17 / 730)
    assert with_disk.price.usd == pytest.approx(0.73 * 1.15)
    assert with_disk.billed_usd == pytest.approx(with_disk.price.usd + with_disk.disk_usd)


def test_your_own_price_stands_for_your_own_machines() -> None:
    for kind in ("ssh", "slurm", "local", "kubernetes"):
        found = billed(on(JOB, nodes=2), kind, price=2.5)
        assert (found.price.usd, found.price.spot_usd) == (5.0, 5.0)


def test_nothing_is_billed_where_nobody_sends_a_bill() -> None:
    for kind in ("local", "docker", "slurm", "ssh"):
        assert quote(JOB, kind, {}) is None
    assert quote(JOB, "kubernetes", {"platform": "plain"}) is None


def test_a_job_that_names_no_machine_gets_the_usual_one() -> None:
    assert billed(on(JOB, machine=None), "vertex", **EAST).machine == "n1-standard-8"
    a100 = billed(on(JOB, machine=None, accelerator=Accelerator(kind="A100", count=8)), "vertex", **EAST)
    assert a100.machine == "a2-highgpu-8g"
    plain = billed(on(JOB, machine=None, accelerator=None, cpus=6, memory=40 * 2**30), "vertex", **EAST)
    assert plain.machine == "n1-standard-16"


def test_what_is_built_into_a_machine_is_billed_though_the_job_does_not_name_it() -> None:
    found = billed(on(JOB, machine="g2-standard-24", accelerator=None), "vertex", **EAST)
    assert found.accelerator == ("L4", 2)
    assert [item.what for item in found.items] == ["g2-standard-24", "2 × L4"]


@pytest.mark.parametrize(
    ("machine", "accelerator", "region", "reason"),
    [
        ("n9-standard-8", None, "us-east1", "n9-standard-8 is not in the price table"),
        ("n1-standard-8", "T4", "moon-east1", "n1-standard-8 is not offered in moon-east1"),
        ("n1-standard-8", "RTX3090", "us-east1", "RTX3090 is not in the price table"),
        ("n1-standard-8", "T4", "europe-north1", "T4 is not offered in europe-north1, but in asia"),
    ],
)
def test_a_price_that_is_not_known_says_why(machine: str, accelerator: str | None, region: str, reason: str) -> None:
    wanted = Accelerator(kind=accelerator) if accelerator else None
    found = billed(on(JOB, machine=machine, accelerator=wanted), "vertex", region=region)
    assert reason in found.missing
    assert found.items == ()


@pytest.mark.parametrize(
    ("options", "region"),
    [
        ({"region": "us-east1"}, "us-east1"),
        ({"zone": "us-east1-c"}, "us-east1"),
        ({"location": "europe-west4-b"}, "europe-west4"),
        ({"context": "gke_my-project_us-west1-b_ml"}, "us-west1"),
        ({"context": "minikube"}, "us-central1"),
        ({}, "us-central1"),
    ],
)
def test_the_region_is_read_from_what_the_target_says(options: dict[str, str], region: str) -> None:
    assert region_of(options) == region


def test_regions_are_compared_cheapest_first() -> None:
    found = compare_regions("T4", 1)
    prices = [each.price.usd for each in found]
    assert prices == sorted(prices)
    assert len(found) > 10
    assert {each.machine for each in found} == {"n1-standard-8"}


def test_machines_and_what_they_carry_agree() -> None:
    for kind in ACCELERATORS:
        for count in (1, 2, 4, 8, 16):
            machine = machine_for(kind, count)
            if machine is not None:
                assert accelerators_of(machine) in (None, (kind, count))
    assert machine_for("H200", 1) is None
    assert machine_with(None, None) == "n1-standard-4"
    assert machine_for("T4", 1, cpus=12) == machine_for("T4", 1, memory=40 * 2**30) == "n1-standard-16"
    assert machine_for("L4", 1, cpus=10) == "g2-standard-12"
    assert machine_with(500, None) == "n1-highmem-96"


def test_disks_and_buckets_cost_what_a_newer_table_says(tmp_path: Path) -> None:
    with_disk = on(JOB, disk=100 * 10**9)
    assert billed(with_disk, "vertex", **EAST).disk_usd_per_month == pytest.approx(10.0)
    rows = load().text.replace(load().dated, "2099-01-01", 1).rstrip("\n")
    more = "disk,pd-balanced,1,,,us-east1,0.001,\nstorage,standard,1,,,us-east1,0.0001,\n"
    (tmp_path / "new.csv").write_text(f"{rows}\n{more}")
    update(tmp_path / "new.csv")
    assert billed(with_disk, "vertex", **EAST).disk_usd_per_month == pytest.approx(73.0)
    assert load().per_gb_month("storage", "standard", "us-east1", 0.02) == pytest.approx(0.073)
    assert load().per_gb_month("storage", "standard", "us-west1", 0.02) == 0.02
