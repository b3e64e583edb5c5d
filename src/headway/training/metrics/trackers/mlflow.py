"""MLflow tracker: logs to $MLFLOW_TRACKING_URI or, if that is not set, to MLflow's file store in files/mlruns.

Every attempt rewrites the file store from the run's history. Any other store is queried for the last step of each
metric. Steps that a killed attempt had sent and this one repeats keep their first values there.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from headway.training.metrics.trackers.base import TrackerRunInfo

BATCH = 1000  # metrics per request, MLflow's limit
_LONGEST = 500  # characters of a parameter's value, the limit of the oldest servers
_FORBIDDEN = re.compile(r"[^\w\-. /]")


class MLflow:
    def __init__(self, run_info: TrackerRunInfo) -> None:
        given = os.environ.get("MLFLOW_TRACKING_URI")
        self.where = given or f"{run_info.folder}/mlruns"
        if not given:
            shutil.rmtree(self.where, ignore_errors=True)
            # MLflow 3 requires opting in. Its SQLite store needs all of MLflow, seven seconds and a local disk.
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        self._client = MlflowClient(tracking_uri=given or Path(self.where).absolute().as_uri())
        self._run_id, new = self._find(run_info)
        self._last = {} if new else self._last_steps()
        self._waiting: list[Metric] = []

    def knows(self, name: str, step: int) -> bool:
        return step <= self._last.get(_name(name), -1)

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        at = int(time_s * 1000)
        metrics = [Metric(_name(name), float(value), at, step) for name, value in values.items()]
        if len(self._waiting) + len(metrics) > BATCH:
            self.flush()
        self._waiting += metrics

    def flush(self) -> None:
        """Send the waiting metrics. A step's metrics share a request, so that a database has all of them or none."""
        while self._waiting:
            self._client.log_batch(self._run_id, metrics=self._waiting[:BATCH])
            del self._waiting[:BATCH]

    def close(self, *, finished: bool) -> None:
        self.flush()
        self._client.set_terminated(self._run_id, status="FINISHED" if finished else "KILLED")

    def _find(self, run_info: TrackerRunInfo) -> tuple[str, bool]:
        """Return the MLflow run of an earlier attempt or a new one, and whether it is new."""
        client = self._client
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or run_info.project
        known = client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else client.create_experiment(name)
        found = client.search_runs([experiment], f"tags.`headway.id` = '{run_info.id}'", max_results=1)
        if found:
            client.update_run(found[0].info.run_id, status="RUNNING")
            return found[0].info.run_id, False
        facts = {key: value for key, value in run_info.facts.items() if value is not None}
        tags = {"headway.id": run_info.id, "headway.run_folder": run_info.url}
        tags |= {f"headway.{key}": str(value) for key, value in facts.items()}
        run = client.create_run(experiment, run_name=run_info.run, tags=tags)
        params = [Param(_name(key), str(value)[:_LONGEST]) for key, value in _flat(run_info.config)]
        for first in range(0, len(params), 100):
            client.log_batch(
                run.info.run_id, params=params[first : first + 100], tags=[RunTag("headway.id", run_info.id)]
            )
        return run.info.run_id, True

    def _last_steps(self) -> dict[str, int]:
        names = self._client.get_run(self._run_id).data.metrics
        return {name: max(m.step for m in self._client.get_metric_history(self._run_id, name)) for name in names}


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _name(name: str) -> str:
    """Replace the characters that MLflow does not allow in names."""
    return _FORBIDDEN.sub("_", name)
