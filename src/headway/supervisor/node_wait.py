"""Wait for nodes that are not there: for how long, what it costs meanwhile, and what users are told. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from headway.core.format import duration, usd


@dataclass(kw_only=True)
class NodeWait:
    """One wait of node 0 for the other nodes of a run.

    Machines that are not there cost nothing. Those that are there and billed cost their share of the run's price;
    without a price, waiting counts as no time of the budget.
    """

    run: str
    nodes: int
    max_wait_s: float | None  # None: without a limit
    release_s: float
    usd_per_hour: float | None  # of all nodes; None: nothing is billed
    waited_s: float = 0.0
    free_s: float = 0.0  # the part of the wait that is not spent
    _missing: list[int] = field(default_factory=list)

    def advance(self, seconds: float, missing: Collection[int]) -> None:
        """Let time pass in which these nodes were missing."""
        self._missing = sorted(missing)
        self.waited_s += seconds
        absent = 1.0 if self.usd_per_hour is None else len(self._missing) / self.nodes
        self.free_s += seconds * absent

    @property
    def names(self) -> str:
        listed = ", ".join(map(str, self._missing))
        return f"node{'' if len(self._missing) == 1 else 's'} {listed} of {self.nodes}"

    @property
    def billed_usd(self) -> float | None:
        return None if self.usd_per_hour is None else (self.waited_s - self.free_s) / 3600 * self.usd_per_hour

    @property
    def absent(self) -> str:
        """Return why the run ends because nodes are missing; "" while it waits."""
        if self.waited_s < (math.inf if self.max_wait_s is None else self.max_wait_s):
            return ""
        return f"{self.names} did not join: waited {self.waited_s:.0f} s (max_wait)"

    @property
    def released(self) -> str:
        """Return why the nodes that are there are given back; "" while they are kept."""
        billed = self.billed_usd
        if billed is None or self.waited_s < self.release_s:
            return ""
        return (
            f"{self.names} did not join within {duration(self.release_s)}, so the nodes that were there, billed "
            f"{usd(billed)} meanwhile, are given back: headway resume {self.run}"
        )

    @property
    def condition(self) -> dict[str, Any]:
        """Return what `status` and `why` show."""
        verb = "has" if len(self._missing) == 1 else "have"
        text = f"waiting {self.nodes - len(self._missing)}/{self.nodes}: {self.names} {verb} not joined"
        text += f" for {duration(self.waited_s)}" if self.waited_s >= 1 else ""
        if self.max_wait_s is not None:
            text += f" (max_wait: {duration(self.max_wait_s)})"
        billed = self.billed_usd
        if billed is not None:
            here = self.nodes - len(self._missing)
            nodes = "1 node is" if here == 1 else f"{here} nodes are"
            text += f"; {nodes} billed meanwhile ({usd(billed)}), and given back after {duration(self.release_s)}"
        unlimited = "" if self.max_wait_s is not None else "; max_wait: 1h in the job file limits such waits"
        return {"kind": "waiting", "text": text, "fix": f"headway stop {self.run} ends it{unlimited}"}
