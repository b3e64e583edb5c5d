"""What trackers have kept, read the way their own tools read it: values by step, for each name."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Series = dict[str, list[tuple[int, float]]]


def tensorboard(folder: Path) -> Series:
    """By TensorBoard's own reader, which sees duplicates where there are any."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    return {tag: [(scalar.step, scalar.value) for scalar in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def mlflow(uri: str, experiment: str) -> tuple[Series, Any]:
    """By MLflow's own client: the metrics' histories, and the one run they belong to."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    runs = client.search_runs([found.experiment_id])
    assert len(runs) == 1
    run_id = runs[0].info.run_id
    names = runs[0].data.metrics
    return {n: sorted((m.step, m.value) for m in client.get_metric_history(run_id, n)) for n in names}, runs[0]


def wandb(folder: Path) -> tuple[Series, dict[str, Any], str]:
    """The one offline run of a folder: its history, its config and its id."""
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    series: Series = {}
    config: dict[str, Any] = {}
    for record in _wandb_records(path):
        if record.WhichOneof("record_type") == "history":
            row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for name in (name for name in row if not name.startswith("_")):
                series.setdefault(name, []).append((record.history.step.num, row[name]))
        elif record.WhichOneof("record_type") == "run":
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    return series, config, path.stem.removeprefix("run-")


def _wandb_records(path: Path) -> Iterator[Any]:
    """The client's own transaction log: LevelDB's log format around its own messages."""
    from wandb.proto.wandb_internal_pb2 import Record

    body, at, pieces = path.read_bytes(), 7, b""
    while at + 7 <= len(body):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", body, at)
        pieces += body[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            record = Record()
            record.ParseFromString(pieces)
            yield record
            pieces = b""
