"""How long it takes: measured only where the same work ran on the same device; everything else is called rough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.planning.cost import reserved_s
from headway.pricing.estimate import (
    Device,
    PastRun,
    device_of,
    estimate,
    examples_per_epoch,
    flops_per_example,
    length_of,
    loading_core_s,
    model_sizes,
    past_runs,
    path,
    remember,
    task_of,
    work_of,
)
from headway.pricing.quote import export_s, retained_checkpoints, stored_data
from headway.pricing.table import sustained_tflops
from headway.spec import Budget, Job

T4 = Device(kind="T4")
JOB: dict[str, Any] = {
    "recipe": "captioning",
    "config": {
        "encoder": "resnet50",
        "finetune_from": 0,
        "image_size": 224,
        "hidden_size": 512,
        "epochs": 10,
        "batch_size": 32,
        "train_samples": 8000,
    },
    "data": {"train": [{"source": "builtin:scenes"}]},
    "resources": {"accelerator": "T4:1", "nodes": 1},
    "checkpoint": {"keep_last": 3, "keep_best": 1, "keep_every": "5 epochs"},
}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


def seen(job: dict[str, Any] = JOB, **changes: Any) -> PastRun:
    known: dict[str, Any] = {
        "url": "runs/a", "what": "captioning", "work": work_of(job), "device": "T4:1", "nodes": 1,
        "length": length_of(job), "seconds": 7200.0, "examples": 80_000.0,
    }  # fmt: skip
    return PastRun(**{**known, **changes})


def test_without_any_experience_arithmetic_is_counted_and_called_rough() -> None:
    found = estimate(JOB, T4)
    assert found is not None
    assert found.basis == "rough"
    assert 0.05 < found.hours < 2.0  # 80,000 pictures at three times 8.2 GFLOP, and 2,500 steps


def test_a_run_of_the_same_job_on_the_same_device_is_a_measurement() -> None:
    remember(seen())
    found = estimate(JOB, T4)
    assert found is not None
    assert (found.basis, found.hours) == ("measured", 2.0)


def test_twice_as_many_epochs_take_twice_as_long() -> None:
    remember(seen())
    longer = {**JOB, "config": {**JOB["config"], "epochs": 20}}
    found = estimate(longer, T4)
    assert found is not None
    assert (found.basis, found.hours) == ("measured", 4.0)


def test_another_device_is_reckoned_by_its_speed_and_called_rough() -> None:
    remember(seen())
    on = {kind: estimate(JOB, Device(kind=kind)) for kind in ("T4", "V100", "A100")}
    assert all(found is not None for found in on.values())
    hours = {kind: found.hours for kind, found in on.items() if found is not None}
    assert hours["A100"] < hours["V100"] < hours["T4"] == 2.0
    assert 2.0 < hours["T4"] / hours["A100"] < 3.5  # as people report: 6–8 h against 2–3 h
    assert on["A100"] is not None
    assert on["A100"].basis == "rough"


def test_another_job_of_the_same_recipe_is_reckoned_by_its_examples() -> None:
    remember(seen())
    other = {**JOB, "config": {**JOB["config"], "hidden_size": 256, "train_samples": 4000}}
    found = estimate(other, T4)
    assert found is not None
    assert (found.basis, found.hours) == ("rough", 1.0)


def test_a_rehearsal_is_not_called_a_measurement_and_yields_to_a_run() -> None:
    remember(seen(url="rehearsal", basis="rehearsal", seconds=3600.0))
    first = estimate(JOB, T4)
    remember(seen())
    second = estimate(JOB, T4)
    assert first is not None
    assert second is not None
    assert (first.basis, first.hours) == ("rough", 1.0)
    assert (second.basis, second.hours) == ("measured", 2.0)


def test_a_script_nobody_has_run_is_not_estimated() -> None:
    script = {"script": "train.py", "config": {}, "resources": {"nodes": 1}}
    assert estimate(script, T4) is None


def test_a_script_is_measured_like_a_recipe() -> None:
    script = {"name": "a", "script": "train.py", "args": ["--lr", "1"], "data": {}, "resources": {"nodes": 1}}
    remember(seen(script, what=task_of(script), examples=None))
    found = estimate(script, T4)
    other = estimate({**script, "args": ["--lr", "2"]}, T4)
    assert found is not None
    assert found.basis == "measured"
    assert other is None
    assert estimate({**script, "name": "b"}, T4) is None  # another project's train.py


def test_the_same_run_seen_twice_counts_once() -> None:
    remember(seen(seconds=1.0))
    remember(seen(seconds=7200.0))
    assert [one.seconds for one in past_runs()] == [7200.0]


def test_damage_to_what_is_remembered_costs_a_line_not_a_plan() -> None:
    remember(seen())
    with open(path(), "ab") as file:
        file.write(b'{"half": \n\xff\xfe\n[]\n{"url": 3}\n')
    remember(seen(url="runs/b"))
    assert [one.url for one in past_runs()] == ["runs/a", "runs/b"]


def test_a_place_that_cannot_be_written_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", "/dev/null/nowhere")
    remember(seen())
    assert past_runs() == []


def test_storage_is_checkpoints_by_retention_and_the_export() -> None:
    assert retained_checkpoints(JOB) == 3 + 1 + 2
    assert stored_data(JOB) is None
    remember(seen(checkpoint_bytes=1_000_000_000, export_bytes=500_000_000))
    stored = stored_data(JOB)
    assert stored is not None
    assert stored.gb == pytest.approx(6.5)
    assert stored.usd_per_month == pytest.approx(0.13)


def test_on_this_machine_an_accelerator_that_is_not_here_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.exists", lambda path: False)
    assert device_of(JOB, "local", cpus=2).label == "cpu:2"
    assert device_of(JOB, "vertex").label == "T4:1"


def test_rows_of_prepared_data_are_counted(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"splits": {"train": [{"rows": 30}, {"rows": 12}]}}')
    sources = [{"source": str(tmp_path)}, {"source": str(tmp_path), "limit": 10}]
    assert examples_per_epoch({"data": {"train": sources}}) == 52
    assert examples_per_epoch({"data": {"train": [*sources, {"source": "gs://b/x"}]}}) is None


def flops(recipe: str, **config: Any) -> float:
    found = flops_per_example(model_sizes({"recipe": recipe, "config": {"epochs": 10, "layers": 1, **config}}))
    assert found is not None
    return found


def test_each_recipe_counts_the_model_and_the_pictures_that_it_trains_on() -> None:
    frozen, trained = flops("captioning", encoder="resnet50"), flops("captioning", encoder="resnet50", finetune_from=0)
    assert trained > 10 * frozen  # beside the decoder: forward once, not forward and backward in each of ten epochs
    decoder = 3 * 2 * (4 * 192**2 + 2 * 192 * 4 * 192) * 20 * 5
    scenes = [flops("captioning", encoder="cnn", image_size=side) - decoder for side in (64, 128)]
    assert scenes[1] == pytest.approx(4 * scenes[0])
    assert flops("captioning") == flops("captioning", encoder="cnn", image_size=64)
    data = {"source": "builtin:leaves"}
    small, large = (
        model_sizes({"recipe": "classification", "config": {"model_size": size}, "data": data})
        for size in ("small", "large")
    )
    assert (small["image_size"], small["gmacs"], large["gmacs"]) == (64, 0.140, 1.892)


def test_a_bigger_model_counts_for_more() -> None:
    small, big = flops_per_example({"encoder": "resnet18"}), flops_per_example({"encoder": "resnet50"})
    words = flops_per_example({"d_model": 256, "layers": 3})
    assert small
    assert big
    assert words
    assert words < small < big
    assert flops_per_example({"lr": 1}) is None
    assert sustained_tflops("unheard-of") is None


def flops_of(recipe: str, **config: Any) -> float:
    return flops_per_example(model_sizes({"recipe": recipe, "config": config})) or 0.0


def test_a_recipe_derives_the_sizes_that_are_counted_from_its_settings() -> None:
    tiny, base = (flops_of("translation", model_size=size) for size in ("tiny", "base"))
    assert 0 < tiny < flops_of("translation", model_size="tiny", d_model=512) < base
    assert loading_core_s(model_sizes({"recipe": "translation", "config": {}})) == 0.0, "sentences are read in no time"
    full, small = (flops_of("grading", model_size=size) for size in ("full", "small"))
    assert full / small == pytest.approx(16 * (224 / 128) ** 2), "a quarter of the channels, at most 128 pixels"
    assert flops_of("grading", views="single") < full
    assert flops_of("grading", model_size="small", back="efficientnet_lite0") > small


def test_what_the_cores_cannot_read_fast_enough_no_gpu_makes_up_for() -> None:
    """A small network on a large GPU waits for its pictures; on cores alone both are added up."""
    job = {
        **JOB,
        "config": {**JOB["config"], "encoder": "efficientnet_lite0", "hidden_size": 8, "train_samples": 10**7},
    }
    large, larger = (estimate(job, Device(kind=kind)) for kind in ("H100", "B200"))
    assert large is not None
    assert larger is not None
    assert large.hours == larger.hours
    assert large.how == "a count of its pictures"
    alone = estimate(job, Device(kind=None, count=8))
    assert alone is not None
    assert alone.hours > large.hours


def test_an_export_that_took_long_is_kept_in_reserve_of_a_budget() -> None:
    remember(seen(export_s=100.0))
    assert export_s(JOB) == 100.0
    limited, free = Job(name="j", recipe="captioning", budget=Budget(hours=1)), Job(name="j", recipe="captioning")
    assert reserved_s(limited, JOB) == {"HEADWAY_EXPORT_S": "120"}
    assert reserved_s(free, JOB) == {}
    remember(seen(export_s=4.0))
    assert reserved_s(limited, JOB) == {}, "as much is kept anyway"
