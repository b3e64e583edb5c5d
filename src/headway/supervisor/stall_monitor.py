"""Watch the ranks of all nodes for a stall: measure, collect stacks, record it, and tell the coordinator to act."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.core.errors import HeadwayError
from headway.diagnose.fault import STALLED
from headway.supervisor.node import Node
from headway.supervisor.processes import ControlRecord, RankExit
from headway.supervisor.stacks import RankStack, describe_stuck, read_stacks, stuck_rank
from headway.supervisor.watchdog import Load, Stall, Watchdog

_CHECK_S = 1.0
_COLLECT_S = 20.0  # how long to wait for the stacks of other nodes
DEFAULT_ACTION = "restart"

Emit = Callable[..., None]


@dataclass(frozen=True, slots=True)
class StacksCollected:
    """The stacks of this node's ranks."""

    attempt: int
    stacks: Sequence[RankStack]


def collect_stacks(node: Node, attempt: int, post: Callable[[StacksCollected], None]) -> None:
    """Collect the stacks of a node's ranks on a thread, which posts them."""
    ranks, folder, code = node.ranks.pids_by_rank, node.workdirs.work, str(node.workdirs.code)

    def collect() -> None:
        post(StacksCollected(attempt, read_stacks(ranks, folder, code)))

    threading.Thread(target=collect, name="stacks", daemon=True).start()


class StallMonitor:
    """The coordinator's watchdog. All methods run on its main thread."""

    def __init__(self, node: Node, event: Emit, ask_peers: Callable[[dict[str, Any]], int]) -> None:
        """`ask_peers` sends a message to all other nodes and returns how many there are."""
        job = node.plan.job
        self._node, self._event, self._ask_peers = node, event, ask_peers
        self._action = str(job.get("on_stall") or DEFAULT_ACTION)
        self.watchdog = Watchdog(stall_s=job.get("stall"), unit_s=node.settings.stall_s)
        self._enabled = not job.get("ends_when") and self._action != "off"
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Begin an attempt."""
        self.watchdog.begin()
        self._attempt, self._next_check, self._signs = attempt, 0.0, self._node.signs_of_life
        self._stall: Stall | None = None
        self._began_at = 0.0
        self._stacks: list[RankStack] = []
        self._asked = self._answered = 0
        self._described = False
        self.crash: RankExit | None = None  # set when the ranks must be ended because of the stall

    @property
    def condition(self) -> dict[str, Any] | None:
        """Return what `status` shows beside the state; None while the run makes progress."""
        if self._stall is None:
            return None
        where = f": {describe_stuck(self._stacks)}" if self._described else ""
        return {"kind": "stalled", "text": f"stalled: {self._stall}{where}", "since": round(self._began_at, 3)}

    @property
    def stalled_crash(self) -> RankExit | None:
        """Return the crash that stands for the stall, while there is one: torch's time-out may end the ranks first."""
        return None if self._stall is None or not self._described else self._crash_of(self._stall)

    def on_record(self, rank: int, record: ControlRecord) -> None:
        """Take a control record of a rank of this node."""
        progress = record.get("progress")
        if isinstance(progress, Mapping) and "phase" in progress:
            if rank == 0:
                self.watchdog.report(int(progress.get("step") or 0), str(progress["phase"]), progress.get("epoch"))
        elif "timing" not in record:
            self.watchdog.activity()

    def on_peer(self, node: int, message: Mapping[str, Any]) -> None:
        """Take another node's load or stacks."""
        if "load" in message:
            self.watchdog.load(node, Load.of(message["load"]))
            if message.get("signs"):
                self.watchdog.activity()
        elif "stacks" in message and message.get("attempt") == self._attempt:
            self._add_stacks([RankStack(**each) for each in message["stacks"]])

    def on_message(self, message: StacksCollected) -> None:
        if message.attempt == self._attempt:
            self._add_stacks(message.stacks)

    def check(self) -> None:
        """Look at the run, at most once a second. Sets `crash` when it is time to act."""
        now = time.monotonic()
        if not self._enabled or now < self._next_check:
            return
        self._next_check = now + _CHECK_S
        if self._node.signs_of_life != self._signs:
            self._signs = self._node.signs_of_life
            self.watchdog.activity()
        load = self._node.measure_load()
        if load is not None:
            self.watchdog.load(self._node.topology.node, load)
        self._update(self.watchdog.check())

    def _update(self, stall: Stall | None) -> None:
        before, self._stall = self._stall, stall
        if stall is None:
            if before is not None:
                self._end(before)
            return
        if before is None:
            self._began_at = time.time() - stall.silent_s
            self._stacks, self._answered, self._described = [], 0, False
            self._asked = 1 + self._ask_peers({"do": "stacks"})
            self._asked_at = time.monotonic()
            collect_stacks(self._node, self._attempt, self._node.loop.inbox.post)
        elif not self._described and time.monotonic() - self._asked_at > _COLLECT_S:
            self._describe(stall)
        if stall.act and self._described and self._action in ("restart", "stop"):
            self._act(stall)

    def _end(self, before: Stall) -> None:
        self._described = False
        self._event("stall_over", phase=before.phase, seconds=round(before.silent_s, 1))
        self._node.log(f"the run continues after {before.silent_s:.0f} s without progress")

    def _add_stacks(self, stacks: Sequence[RankStack]) -> None:
        if self._stall is None or self._described:
            return
        self._stacks += stacks
        self._answered += 1
        if self._answered >= self._asked:
            self._describe(self._stall)

    def _describe(self, stall: Stall) -> None:
        """Record the stall, with the stuck rank and its line; keep the stacks in the run folder; notify."""
        self._described = True
        stuck = stuck_rank(self._stacks)
        where = describe_stuck(self._stacks)
        file = f"stacks/a{self._attempt:04d}-{int(self._began_at)}.txt"
        ranks = {str(each.rank): each.state or each.waits_for or each.place for each in self._stacks}
        self._event(
            "stall",
            phase=stall.phase,
            silent_s=round(stall.silent_s, 1),
            usual_s=None if stall.usual_s is None else round(stall.usual_s, 3),
            rank=stuck.rank if stuck else None,
            at=stuck.at if stuck else "",
            what=str(stall),
            where=where,
            ranks=ranks,
            stacks=file,
            then=self._action,
        )
        self._node.log(f"stalled: {stall}: {where}; headway why {self._node.folder.name}")
        text = "\n".join(f"rank {each.rank}\n{each.text}\n" for each in sorted(self._stacks, key=lambda one: one.rank))
        self._in_background(file, text, f"{stall}: {where}")

    def _in_background(self, file: str, text: str, reason: str) -> None:
        """Write the stacks and notify on a thread: a store or a webhook that hangs may be why the run is stalled."""
        node = self._node

        def write() -> None:
            try:
                node.folder.store.write(file, node.redact(text.encode("utf-8", "backslashreplace")))
            except HeadwayError as error:
                node.log(f"the stacks could not be saved: {error.problem.what}")
            node.notify("stalled", reason, self._spent_s())

        threading.Thread(target=write, name="stall", daemon=True).start()

    def _spent_s(self) -> float:
        from headway.rundir.lease import spent_s

        try:
            return spent_s(self._node.folder)
        except HeadwayError:
            return 0.0

    def _act(self, stall: Stall) -> None:
        """Let the coordinator end the ranks, as if the stuck one had failed at its line."""
        self.crash, self._stall = self._crash_of(stall), None

    def _crash_of(self, stall: Stall) -> RankExit:
        stuck = stuck_rank(self._stacks)
        rank, at = (stuck.rank, stuck.at) if stuck else (0, "")
        lines = tuple(stuck.text.splitlines()[-60:]) if stuck else ()
        return RankExit(
            rank=rank,
            code=1,
            lines=lines,
            exception=f"{STALLED} at {at}" if at else STALLED,
            stalled=f"{stall}: {describe_stuck(self._stacks)}",
            end_run=self._action == "stop",
        )
