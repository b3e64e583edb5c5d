"""TensorBoard tracker: event files in files/tensorboard, rewritten from the run's history by every attempt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboardX.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboardX.record_writer import RecordWriter  # type: ignore[import-untyped]

from headway.training.metrics.trackers.base import TrackerRunInfo


class TensorBoard:
    """Writes one event per step. Replaces earlier files: a kill may have truncated them, and segments have it all."""

    def __init__(self, run_info: TrackerRunInfo) -> None:
        folder = Path(run_info.folder, "tensorboard")
        folder.mkdir(parents=True, exist_ok=True)
        self.where = f"tensorboard --logdir {folder}"
        older = sorted(folder.glob("*.tfevents.*"))
        # Names increase with the attempt, so that a reader of the old file moves on to this one.
        count = 1 + sum(path.name.startswith(_prefix(run_info)) for path in older)
        self._writer = RecordWriter(str(folder / f"{_prefix(run_info)}{count:04d}"))
        self._write(Event(file_version="brain.Event:2"))
        # Tells readers of the old file to discard everything from step 0 on.
        self._write(Event(step=0, session_log=SessionLog(status=SessionLog.START)))
        for path in older:
            path.unlink()

    def knows(self, name: str, step: int) -> bool:
        return False

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(Event(wall_time=time_s, step=step, summary=Summary(value=scalars)))

    def flush(self) -> None:
        self._writer.flush()

    def close(self, *, finished: bool) -> None:
        self._writer.close()

    def _write(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())


def _prefix(run_info: TrackerRunInfo) -> str:
    return f"events.out.tfevents.a{run_info.attempt:04d}."
