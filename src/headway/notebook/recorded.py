"""A run as its folder records it, for notebooks and scripts. Needs neither torch nor numpy, and changes nothing."""

from __future__ import annotations

import os
from typing import Any

from headway.curves import Curves
from headway.runfolder import PROGRESS, RECEIPT, REPORT, RunFolder
from headway.runs import LAST, find, folder_status
from headway.spent import spent_s, spent_usd
from headway.targets.base import Status

OPENED = "HEADWAY_NOTEBOOK_RUN"  # set by `headway notebook`: the run it was opened for


def open_run(run: str | None = None) -> RecordedRun:
    """The run meant by a name, a unique prefix, `last`, a folder or a URL; by default the one that this notebook was
    opened for, or else the last one. The last line of a cell shows it as a card."""
    return RecordedRun(find(run or os.environ.get(OPENED) or LAST).open())


class RecordedRun:
    """Every look reads the folder anew, here or in a bucket; curves only what has been added since."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._curves = Curves(folder)
        self._plan = folder.plan()

    @property
    def name(self) -> str:
        return self._folder.name

    @property
    def url(self) -> str:
        return self._folder.url

    @property
    def target(self) -> str:
        return self._plan.target

    @property
    def job(self) -> dict[str, Any]:
        """The job file, with every default filled in."""
        return dict(self._plan.job)

    @property
    def status(self) -> Status:
        """As far as the folder can tell: no target is asked."""
        return folder_status(self._folder)

    @property
    def state(self) -> str:
        return self.status.state.value

    @property
    def progress(self) -> dict[str, Any]:
        """Step, epoch, speed, seconds left: the newest that was told; empty before the first step."""
        return self._folder.read_json(PROGRESS) or {}

    @property
    def spent(self) -> dict[str, float | None]:
        """Seconds and dollars over all attempts, and the budget of both; None where there is none."""
        seconds = spent_s(self._folder)
        return {
            "seconds": seconds,
            "budget_s": self._plan.limits.budget_s,
            "usd": spent_usd(self._plan, seconds),
            "budget_usd": self._plan.price.get("ceiling_usd"),
        }

    @property
    def report(self) -> dict[str, Any] | None:
        """What `headway eval` found; None before it."""
        return self._folder.read_json(REPORT)

    @property
    def receipt(self) -> dict[str, Any] | None:
        return self._folder.read_json(RECEIPT)

    @property
    def checkpoints(self) -> list[dict[str, Any]]:
        return [event for event in self.events() if event["kind"] == "checkpoint"]

    def events(self) -> list[dict[str, Any]]:
        return self._folder.events()

    def metrics(self) -> list[dict[str, Any]]:
        """A record a step, as `pandas.DataFrame` likes it."""
        return self._folder.metrics()

    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """(step, value) of everything that was logged, by name."""
        self._curves.refresh()
        with self._curves.lock:
            found = {name: self._curves[name] for name in self._curves.names}
            return {name: list(zip(curve.steps, curve.values, strict=True)) for name, curve in found.items()}

    def logs(self, last: int | None = None, rank: int | None = None) -> list[str]:
        """What it printed, over all ranks by time; only the last lines if so asked."""
        lines = [line.text for line in self._folder.log_lines(rank)]
        return lines if last is None else lines[-last:] if last else []

    def __repr__(self) -> str:
        progress, status = self.progress, self.status
        steps = f", step {progress['step']}/{progress.get('steps', '?')}" if progress.get("step") is not None else ""
        return f"<{self.name}: {status.state.value}{steps}, {self.url}>"

    def _repr_html_(self) -> str:
        from headway.notebook.card import card

        return card(self)
