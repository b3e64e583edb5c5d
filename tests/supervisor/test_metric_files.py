"""Metrics from the files of real trackers, read without their libraries while they grow."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.metric_sources import FILE_SOURCES
from headway.supervisor.metric_files import MetricFiles, fields

ALL = frozenset(FILE_SOURCES)


def curve(records: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(record["step"], pytest.approx(record[name])) for record in records if name in record]  # type: ignore[misc]


class Writer:
    """An event file, written by TensorBoard."""

    def __init__(self, folder: Path) -> None:
        writing = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
        self._writer = writing.EventFileWriter(str(folder))

    def add(self, tag: str, value: float, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
        self._writer.add_event(Event(step=step, wall_time=1.5, summary=summary))
        self._writer.flush()


def test_event_files_of_tensorboardx_are_read(tmp_path: Path) -> None:
    tensorboardx = pytest.importorskip("tensorboardX")
    files = MetricFiles([tmp_path], ALL)
    with tensorboardx.SummaryWriter(str(tmp_path / "runs" / "first")) as writer:
        writer.add_scalar("train/loss", 0.5, 10)
        writer.add_histogram("weights", [1.0, 2.0, 3.0], 10)
        writer.add_text("note", "no number", 10)
        writer.add_scalar("train/loss", 0.25, 20)
        writer.add_scalar("accuracy", float("nan"), 20)
    first, second = files.read()
    assert {name: first[name] for name in first if name != "time"} == {"step": 10, "train/loss": 0.5}
    assert (second["step"], second["train/loss"], second["accuracy"]) == (20, 0.25, "nan")
    assert files.read() == []


def test_event_files_are_read_as_they_grow(tmp_path: Path) -> None:
    files, writer = MetricFiles([tmp_path], ALL), Writer(tmp_path / "runs")
    for step in range(3):
        writer.add("loss", step / 2, step)
        assert files.read() == [{"step": step, "time": 1.5, "loss": step / 2}]


def test_scalars_that_tensorflow_writes_as_tensors_are_read(tmp_path: Path) -> None:
    writing = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto

    files = MetricFiles([tmp_path], ALL)
    for folder, value in (("train", 0.5), ("validation", 0.75)):
        writer = writing.EventFileWriter(str(tmp_path / "logs" / folder))
        by_content = TensorProto(dtype=1, tensor_content=struct.pack("<f", value))
        by_value = TensorProto(dtype=1, float_val=[value])
        several = TensorProto(dtype=1, float_val=[1.0, 2.0])
        several.tensor_shape.dim.add(size=2)
        text = TensorProto(dtype=7, string_val=[b"text"])
        tensors = {"epoch_loss": by_content, "epoch_accuracy": by_value, "several": several, "text": text}
        values = [Summary.Value(tag=tag, tensor=tensor) for tag, tensor in tensors.items()]
        writer.add_event(Event(step=3, wall_time=1.5, summary=Summary(value=values)))
        writer.close()
    train, validation = files.read()
    assert train == {"step": 3, "time": 1.5, "epoch_loss": 0.5, "epoch_accuracy": 0.5}
    assert validation == {"step": 3, "time": 1.5, "validation/epoch_loss": 0.75, "validation/epoch_accuracy": 0.75}


def test_files_of_earlier_runs_are_left_alone(tmp_path: Path) -> None:
    old = Writer(tmp_path / "runs")
    old.add("loss", 1.0, 1)
    files = MetricFiles([tmp_path], ALL)
    assert files.read() == []
    old.add("loss", 0.5, 2)
    assert curve(files.read(), "loss") == [(2, 0.5)]


WANDB = """
import wandb
run = wandb.init(mode="offline", project="p", settings=wandb.Settings(silent=True))
for step in range(5):
    run.log({"loss": 1 / (step + 1), "group": {"acc": step / 10}, "words": "no number"})
run.finish()
"""


def test_a_run_of_wandb_is_read_from_its_own_file(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    files = MetricFiles([tmp_path], ALL)
    env = {**os.environ, "WANDB_MODE": "offline", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", WANDB], cwd=tmp_path, env=env, check=True, timeout=120, capture_output=True)
    records = files.read()
    assert curve(records, "loss") == [(step, 1 / (step + 1)) for step in range(5)]
    assert "words" not in records[0]


def test_local_files_of_mlflow_are_read(tmp_path: Path) -> None:
    metrics = tmp_path / "mlruns" / "0" / "0123abcd" / "metrics"
    (metrics / "val").mkdir(parents=True)
    files = MetricFiles([tmp_path], ALL)
    (metrics / "loss").write_text("1700000000000 0.5 1\n1700000001000 0.25 2\n17000000")
    (metrics / "val" / "acc").write_text("1700000000000 0.9 1\n")
    records = files.read()
    assert curve(records, "loss") == [(1, 0.5), (2, 0.25)]
    assert curve(records, "val/acc") == [(1, 0.9)]
    assert records[0]["time"] == 1_700_000_000.0


def test_the_csv_file_of_lightning_is_read_even_when_its_header_changes(tmp_path: Path) -> None:
    path = tmp_path / "lightning_logs" / "version_0" / "metrics.csv"
    path.parent.mkdir(parents=True)
    files = MetricFiles([tmp_path], ALL)
    path.write_text("epoch,step,train_loss\n0,4,0.5\n")
    assert curve(files.read(), "train_loss") == [(4, 0.5)]
    path.write_text("epoch,step,train_loss,val_loss\n0,4,0.5,\n0,9,,0.75\n")
    assert files.read() == [pytest.approx({"step": 9, "time": pytest.approx(0, abs=1e11), "val_loss": 0.75})]


def test_only_the_named_sources_are_read_and_excluded_folders_are_not(tmp_path: Path) -> None:
    csv = "epoch,step,loss\n0,4,0.5\n"
    files = MetricFiles([tmp_path], frozenset({"tensorboard"}))
    others = MetricFiles([tmp_path], ALL, excluded=[tmp_path / "runs"])
    for folder in ("runs", ".hidden", "kept"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "metrics.csv").write_text(csv)
    assert files.read() == []
    assert len(others.read()) == 1


@pytest.mark.parametrize("name", ["x.tfevents.1", "run-1.wandb", "metrics.csv", "mlruns/0/1/metrics/loss"])
@given(data=st.binary(max_size=300))
def test_damaged_files_give_nothing_and_no_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("files")
    files = MetricFiles([folder], ALL)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes((b":W&B\xe1\xbe\x00" if name.endswith(".wandb") else b"") + data)
    files.read()
    with (folder / name).open("ab") as file:
        file.write(data)
    files.read()


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_value_error(data: bytes) -> None:
    try:
        assert all(number >= 0 for number, _ in fields(data))
    except ValueError:
        pass
