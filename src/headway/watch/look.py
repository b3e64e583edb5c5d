"""What is to be seen of a run at one moment: from its folder, and from its target's word on where it stands."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from headway.curves import Curves
from headway.errors import HeadwayError
from headway.spent import spent_s, spent_usd
from headway.storage import local_path
from headway.targets.base import State, Status
from headway.watch.sparkline import thinned

if TYPE_CHECKING:
    from headway.launcher import Launched

NEAR_S, FAR_S = 1.0, 5.0  # how often a folder here, and one elsewhere, is read again
_WIDEST: Final = 512
_FIRST: Final = ("loss", "score")  # what is looked for first


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """One curve, thinned to more than a terminal is wide."""

    values: tuple[float, ...]
    last: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Trace:
        finite = [value for value in values if math.isfinite(value)] or [math.nan]
        thin = (math.nan if mean is None else mean for mean in thinned(values, _WIDEST))
        return cls(values=tuple(thin), last=values[-1], least=min(finite), most=max(finite))


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """One moment. `trouble` is why something could not be read; what was seen before stays shown."""

    run: str
    target: str
    url: str
    status: Status = field(default_factory=lambda: Status(state=State.PENDING))
    progress: Mapping[str, Any] = field(default_factory=dict)
    curves: Mapping[str, Trace] = field(default_factory=dict)
    spent_s: float = 0.0
    budget_s: float | None = None
    spent_usd: float | None = None
    budget_usd: float | None = None
    trouble: str = ""


class Lookout:
    """Looks again when asked, and not more often than the folder's distance allows."""

    def __init__(self, launched: Launched, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._launched, self._clock = launched, clock
        self._folder = launched.folder
        self._every_s = FAR_S if local_path(launched.url) is None else NEAR_S
        self._curves, self._traces = Curves(self._folder), dict[str, Trace]()
        self._plan: Any = None
        self._looked = -self._every_s
        self.view = View(run=launched.run, target=launched.handle.target, url=launched.url)

    def look(self, *, now: bool = False) -> View:
        """The newest view. `now`: whatever was seen a moment ago, read it again."""
        if now or self._clock() - self._looked >= self._every_s:
            try:
                self.view = self._seen()
            except (HeadwayError, ValueError) as error:  # a store out of reach for a moment: said, and tried again
                self.view = _troubled(self.view, str(error).splitlines()[0])
            self._looked = self._clock()
        return self.view

    def _seen(self) -> View:
        self._plan = self._plan or self._folder.plan()
        status = self._launched.target.status(self._launched.handle)
        progress = self._folder.progress() or {}
        if self._curves.refresh():
            named = ((name, self._curves[name].values) for name in ordered(self._curves.names))
            self._traces = {name: Trace.of(values) for name, values in named if values}
        seconds = spent_s(self._folder, progress)
        return View(
            run=self._launched.run,
            target=self._launched.handle.target,
            url=self._launched.url,
            status=status,
            progress=progress,
            curves=self._traces,
            spent_s=seconds,
            budget_s=self._plan.limits.budget_s,
            spent_usd=spent_usd(self._plan, seconds),
            budget_usd=self._plan.price.get("ceiling_usd"),
        )


def ordered(names: Sequence[str]) -> list[str]:
    """Those one looks for first, first; the rest by name."""
    return sorted(names, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))


def _troubled(view: View, trouble: str) -> View:
    return replace(view, trouble=trouble)
