"""The supervisor of a node other than 0: carries out node 0's commands and reports how its ranks end."""

from __future__ import annotations

import signal
import time
from dataclasses import asdict, replace
from typing import Any

from headway.core.errors import WORKER_AGAIN
from headway.supervisor.node import Node
from headway.supervisor.processes import RankExit, Record
from headway.supervisor.rendezvous import (
    Connected,
    Connection,
    Disconnected,
    Joining,
    PeerMessage,
    RendezvousTimeout,
    free_ports,
    interface_of,
)
from headway.supervisor.threads import StoreBack, StoreDown

_BURIAL_S = 15.0


class Follower:
    """Supervisor of one follower node: joins node 0, and joins again after node 0 restarts, until told to end."""

    def __init__(self, node: Node, key: bytes) -> None:
        self.node, self._key = node, key
        self._leader: Connection | None = None
        self._never = ""
        self._code: int | None = None
        self._gone = False
        self._told_of_stop = False
        self._attempt = 0
        self._started = False
        self._order: dict[str, Any] | None = None  # a start command, executed after all pending messages are handled
        self._cancelled = False  # the start command was cancelled before it was executed
        node.heard, node.heed = self._heard, self._heed

    def serve(self) -> tuple[int, str]:
        """Run until node 0 ends the run; return the exit code and the reason.

        The code is 143 if node 0 is not reachable: the platform restarts both supervisors, which then rendezvous again.
        """
        while True:
            self._join()
            if self._never:
                return WORKER_AGAIN, self._never
            if self.node.stop and self._leader is None:
                return WORKER_AGAIN, f"{self.node.stop}: asked to stop"
            self._follow()
            self._end_ranks()
            if self._code is not None:
                return self._code, "node 0 has ended the run"
            if self.node.stop:
                return WORKER_AGAIN, f"{self.node.stop}: asked to stop"
            self.node.say("node 0 disconnected: waiting for it to restart")

    def conclude(self, seconds: float) -> bool:
        mirrored = self.node.finish("mirror", seconds)
        if mirrored:
            self.node.say_what_was_kept()
        self.node.close()
        written = self.node.finish("scribe", seconds)
        if self._leader is not None:
            self._leader.close()
        return mirrored and written

    def _join(self) -> None:
        world = self.node.world
        self._leader, self._gone = None, False
        patience = self.node.settings.peers_s
        hello = {"ports": free_ports(world.processes)}
        post = self.node.loop.inbox.post
        where = (world.master_addr, world.meeting_port)
        self.node.say(f"{world}; joining node 0 at {where[0]}:{where[1]}")
        Joining(where, self._key, world.node, hello, post, patience_s=patience).start()
        self.node.until(lambda: bool(self._leader or self._never or self.node.stop))

    def _follow(self) -> None:
        """Execute commands until node 0 ends the run or disconnects.

        A stop request on this node is sent to node 0, which forwards it to all nodes.
        """
        while True:
            self.node.until(lambda: self._over() or self._order is not None)
            order, self._order = self._order, None
            if order is None or self._over():
                return
            self._start(order)

    def _over(self) -> bool:
        if self.node.stop and not self._told_of_stop:
            self._told_of_stop = True
            self._tell({"stopping": self.node.stop})
            self.node.ranks.signal(signal.SIGTERM)
        self._collect()
        return self._gone or self._code is not None or self._too_late()

    def _too_late(self) -> bool:
        """Return whether this node's grace period is over, even though node 0 has not responded to the stop."""
        asked = self.node.stop_at
        return asked is not None and time.monotonic() > asked + self.node.ranks_grace_s

    def _collect(self) -> None:
        for end in self.node.ranks.ends():
            self.node.say(str(end))
            last = not self.node.ranks.running
            if last:
                self.node.sweep()
            self._report(end)

    def _report(self, end: RankExit) -> None:
        self._tell({"exit": {**asdict(end), "lines": list(end.lines)}, "attempt": self._attempt})

    def _end_ranks(self) -> None:
        """Kill the ranks at once: without node 0 they can neither finish a step nor commit a checkpoint."""
        if self.node.ranks.running:
            self.node.ranks.kill()
            self.node.until(self._none_running, _BURIAL_S)

    def _none_running(self) -> bool:
        self._collect()
        return not self.node.ranks.running

    def _heed(self, message: Any) -> None:
        if isinstance(message, Connected):
            self._leader = message.connection
        elif isinstance(message, RendezvousTimeout):
            self._never = message.why
        elif isinstance(message, Disconnected) and message.connection is self._leader:
            self._gone = True
        elif isinstance(message, PeerMessage):
            self._obey(message.message)
        elif isinstance(message, StoreDown):
            self._event("store_down", error=message.error)
        elif isinstance(message, StoreBack):
            self._event("store_back", seconds=message.seconds)

    def _obey(self, order: dict[str, Any]) -> None:
        do = order.get("do")
        if do == "signal":
            self._cancelled = True
        if do == "start":
            self._order, self._cancelled = order, False
        elif do == "signal" and order["number"] == signal.SIGKILL:
            self.node.ranks.kill()
        elif (
            do == "signal" and not self._told_of_stop
        ):  # this node's ranks already got SIGTERM from us; a second one would end them at once
            self.node.ranks.signal(order["number"])
        elif do == "end":
            self._code = int(order["code"])

    def _start(self, order: dict[str, Any]) -> None:
        assert self._leader is not None
        node, self._attempt = self.node, int(order["attempt"])
        node.open(self._attempt)
        if not self._started:
            self._started = True
            node.rescue_logs(self._attempt)
        node.prepare_files(int(order.get("former", 0)))
        interface = interface_of(self._leader.own_address)
        world = replace(node.world, workers=tuple(order["workers"]), interface=interface)
        node.say(f"attempt {self._attempt}: {world}")
        if self._cancelled or node.stop:
            for rank in world.ranks:
                self._report(RankExit(rank=rank, code=WORKER_AGAIN))
        else:
            node.start_ranks(world, self._attempt, order)

    def _heard(self, rank: int, record: Record) -> None:
        if isinstance(record.get("event"), str):
            self._tell({"record": record, "rank": rank})

    def _event(self, kind: str, **details: Any) -> None:
        self.node.say(f"{kind}: {details}")
        self._tell({"event": {"kind": kind, "node": self.node.world.node, **details}})

    def _tell(self, message: dict[str, Any]) -> None:
        if self._leader is not None:
            self._leader.tell(message)
