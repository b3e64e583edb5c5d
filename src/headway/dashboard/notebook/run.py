"""A recorded run for notebooks and scripts, and its HTML card.

The card holds its curves, has no script, loads nothing and follows the page's colours.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from headway.artifacts.svg_chart import Line, chart
from headway.core.format import duration, usd
from headway.core.html import render
from headway.core.types import Status
from headway.dashboard.terminal import ordered
from headway.rundir.history import Curves
from headway.rundir.layout import PROGRESS, RECEIPT, REPORT, RunFolder
from headway.rundir.spending import Spending, of_budget
from headway.rundir.status import LAST, find, folder_status

if TYPE_CHECKING:
    from headway.launcher.lifecycle import RunHandle

_MAX_CURVES: Final = 6
_NOISY: Final = ("loss", "grad_norm")


def card(run: RecordedRun) -> str:
    """Render a run's card: state, progress, cost, metrics and curves. Notebooks show it by themselves.

    Args:
        run: The run.

    Returns:
        HTML that holds its curves, has no script and loads nothing.

    Example:
        >>> import headway
        >>> from headway.dashboard.notebook.run import card
        >>> 'class="headway-card"' in card(headway.open_run("runs/night"))
        True
    """
    status, progress = run.status, run.progress
    state = status.state.value
    return render(
        "headway.dashboard.notebook",
        "card.html",
        run=run,
        state=state,
        reason=status.reason,
        step=progress.get("step", 0),
        steps=progress.get("steps"),
        facts=_facts(run, state, progress),
        figures=_figures(run),
    )


def _facts(run: RecordedRun, state: str, progress: Mapping[str, Any]) -> dict[str, str]:
    spent = run.spent
    return {
        "step": f"{progress['step']:,} of {progress.get('steps', 0):,}" if progress.get("step") is not None else "",
        "epoch": f"{min(progress['epoch'] + 1, progress['epochs'])} of {progress['epochs']}"
        if progress.get("epochs")
        else "",
        "steps per second": f"{progress['rate']:.3g}" if progress.get("rate") else "",
        "left": duration(progress["eta_s"]) if progress.get("eta_s") is not None and state == "running" else "",
        "time": of_budget(spent["seconds"], spent["budget_s"], duration),
        "money": of_budget(spent["usd"], spent["budget_usd"], usd),
        **{name: f"{value:.4g}" for name, value in _scores(run).items()},
    }


def _scores(run: RecordedRun) -> dict[str, float]:
    """Return the scores of the evaluation, if there is one."""
    found = (run.report or {}).get("metrics") or {}
    return {name: float(value) for name, value in list(found.items())[:4] if isinstance(value, int | float)}


def _figures(run: RecordedRun) -> list[tuple[str, str]]:
    curves = run.curves()
    drawn = [(name, _curve(name, curves[name])) for name in ordered(list(curves))[:_MAX_CURVES]]
    return [(name, svg) for name, svg in drawn if svg]


def _curve(name: str, points: Sequence[tuple[float, float]]) -> str:
    return chart(name, [Line("", points, noisy=name in _NOISY)])


# The run object. Needs neither torch nor numpy, and changes nothing.


OPEN_RUNS = "HEADWAY_NOTEBOOK_RUN"  # set by `headway notebook`: the run that it was opened for


def open_run(run: str | None = None) -> RecordedRun:
    """Open a recorded run for reading, local or in a bucket. As the last line of a notebook cell it is shown as a card.

    Args:
        run: A name, a unique prefix of one, `last`, a folder or a URL. By default the run that this notebook was opened
            for, or else the last one.

    Returns:
        The run.

    Raises:
        UnknownRun: If there is no such run, or several.

    Example:
        >>> import headway
        >>> run = headway.open_run("runs/night")
        >>> run.state
        'finished'
        >>> run.curves()["loss"][-1]
        (3.0, 0.25)
    """
    return RecordedRun(find(run or os.environ.get(OPEN_RUNS) or LAST).open())


class RecordedRun:
    """A run as its folder records it, from `headway.open_run`. Needs neither torch nor numpy, and changes nothing.

    Each property reads the folder again, local or in a bucket; curves read only what is new.

    Args:
        folder: The run folder.

    Example:
        >>> import headway
        >>> run = headway.open_run("runs/night")
        >>> run.name, run.target, run.job["name"]
        ('night', 'by-hand', 'train')
        >>> run.logs(last=5)
        []
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._curves = Curves(folder)
        self._plan = folder.plan()

    @property
    def name(self) -> str:
        """The run's name."""
        return self._folder.name

    @property
    def url(self) -> str:
        """URL of the run folder."""
        return self._folder.url

    @property
    def target(self) -> str:
        """Name of the target that runs it."""
        return self._plan.target

    @property
    def handle(self) -> RunHandle:
        """A handle to wait for the run, stop it, resume it or copy its files."""
        from headway.launcher import lifecycle

        return lifecycle.open_run(self.url)

    @property
    def job(self) -> dict[str, Any]:
        """The job file, with every default filled in."""
        return dict(self._plan.job)

    @property
    def status(self) -> Status:
        """The status according to the folder; the target is not asked."""
        return folder_status(self._folder)

    @property
    def state(self) -> str:
        """The state as a word: `running`, `finished`, `failed`, …"""
        return self.status.state.value

    @property
    def progress(self) -> dict[str, Any]:
        """The newest step, epoch, speed and seconds left; empty before the first step."""
        return self._folder.read_json(PROGRESS) or {}

    @property
    def spent(self) -> dict[str, float | None]:
        """Seconds and dollars over all attempts, and the budgets for both; None where there is none."""
        spent = Spending.of(self._folder, plan=self._plan)
        return {**spent.as_json(), "seconds": spent.seconds}

    @property
    def report(self) -> dict[str, Any] | None:
        """The result of `headway eval`, or None before it."""
        return self._folder.read_json(REPORT)

    @property
    def receipt(self) -> dict[str, Any] | None:
        """The record of what was removed after the run, or None before that."""
        return self._folder.read_json(RECEIPT)

    @property
    def checkpoints(self) -> list[dict[str, Any]]:
        """The events of committed checkpoints, in order."""
        return [event for event in self.events() if event["kind"] == "checkpoint"]

    def events(self) -> list[dict[str, Any]]:
        """Return the run's history: attempts, checkpoints, scores, its end.

        Returns:
            One dictionary per event, in order, with `kind` and `time`.
        """
        return self._folder.events()

    def metrics(self) -> list[dict[str, Any]]:
        """Return the logged metrics as records.

        Returns:
            One dictionary per step, as `pandas.DataFrame` accepts it.

        Example:
            >>> import headway
            >>> [record["loss"] for record in headway.open_run("runs/night").metrics()]
            [1.0, 0.5, 0.25]
        """
        return self._folder.metrics()

    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """Return the logged metrics as curves.

        Returns:
            (step, value) pairs of every metric, by name.
        """
        self._curves.refresh()
        with self._curves.lock:
            found = {name: self._curves[name] for name in self._curves.names}
            return {name: list(zip(curve.steps, curve.values, strict=True)) for name, curve in found.items()}

    def logs(self, last: int | None = None, rank: int | None = None) -> list[str]:
        """Return the lines that the run printed, by time.

        Args:
            last: Only the last lines, this many. None: all.
            rank: Only this rank's lines. None: those of all ranks.

        Returns:
            The lines.
        """
        lines = [line.text for line in self._folder.log_lines(rank)]
        return lines if last is None else lines[-last:] if last else []

    def __repr__(self) -> str:
        progress, status = self.progress, self.status
        steps = f", step {progress['step']}/{progress.get('steps', '?')}" if progress.get("step") is not None else ""
        return f"<{self.name}: {status.state.value}{steps}, {self.url}>"

    def _repr_html_(self) -> str:

        return card(self)
