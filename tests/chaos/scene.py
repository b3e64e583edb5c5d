"""One run that trouble is made for: from its start, through the trouble, to its end."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.chaos.case import Case, send
from tests.chaos.network import Hosts
from tests.servers.loopback import LoopbackServer

_MOST_STARTS = 6


class Skipped(Exception):
    """This machine cannot do that; the message says why."""


@dataclass
class Scene:
    """A run, and what can be used against it."""

    case: Case
    dice: random.Random
    server: LoopbackServer | None = None  # in front of the bucket
    hosts: Hosts | None = None  # that it runs on, each with a cable of its own
    hurt: bool = False  # a checkpoint was damaged: falling back is right
    commits: list[tuple[int, int]] = field(default_factory=list)  # an attempt, and what was committed by then

    def until_commit(self, more_than: int = 0) -> int:
        """Wait for a commit; 0 when the run ended first."""
        case = self.case
        wanted = max(self.dice.choice([2, 4, 8, 12]), more_than)
        case.until(lambda: case.committed() >= wanted or not case.running, "no commit ever came")
        self.note()
        return case.committed() if case.running else 0

    def note(self) -> None:
        """What is committed now may never be lost."""
        committed = self.case.committed()  # read first: a later attempt may only have more
        self.commits.append((max((seen.attempt for seen in self.case.ranks_now()), default=0), committed))

    def to_its_end(self, also: tuple[int, ...] = ()) -> None:
        """Start it again, as its place would, until it has ended well."""
        case = self.case
        for _ in range(_MOST_STARTS):
            code = case.ends()
            if code == 0:
                return
            assert code in (143, -signal.SIGKILL, *also), f"the supervisor ended with {code}\n{case.explain()}"
            case.until(lambda: not case.left_behind(), "something still runs")
            self.note()
            case.start()
        raise AssertionError(f"it does not come to an end\n{case.explain()}")

    def kill_everything(self) -> None:
        self.case.kill_everything()
        self.case.ends()
        self.note()


Act = Callable[[Scene], str]  # makes the trouble and sees the run to its end; returns what was done, in words


def send_all(pids: set[int], number: int) -> None:
    for pid in pids:
        send(pid, number)
