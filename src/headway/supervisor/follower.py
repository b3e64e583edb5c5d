"""The supervisor of a node other than 0: carries out node 0's commands and reports how its ranks end."""

from __future__ import annotations

import math
import signal
import time
from dataclasses import asdict, replace
from typing import Any

from headway.core.errors import WORKER_DONE, WORKER_RESTART, HeadwayError
from headway.rundir.layout import STOP
from headway.rundir.lease import usd_per_hour
from headway.supervisor.background import StoreDown, StoreRecovered
from headway.supervisor.node import Node
from headway.supervisor.processes import ControlRecord, RankExit
from headway.supervisor.rendezvous import (
    Connected,
    Connection,
    Disconnected,
    JoinThread,
    PeerMessage,
    RendezvousTimeout,
    free_ports,
    interface_of,
)
from headway.supervisor.stall_monitor import StacksCollected, collect_stacks

_KILL_TIMEOUT_S = 15.0
_JOIN_ROUND_S = 60.0  # after which a node that waits for node 0 looks whether the run has ended


class Follower:
    """Supervisor of one follower node: joins node 0, and joins again after node 0 restarts, until told to end."""

    def __init__(self, node: Node, key: bytes) -> None:
        self.node, self._key = node, key
        self._coordinator: Connection | None = None
        self._join_error = ""
        self._code: int | None = None
        self._disconnected = False
        self._stop_sent = False
        self._attempt = 0
        self._started = False
        self._signs = 0
        self._start_command: dict[str, Any] | None = (
            None  # a start command, executed after all pending messages are handled
        )
        self._cancelled = False  # the start command was cancelled before it was executed
        node.on_rank_record, node.on_message = self._on_rank_record, self._on_message

    def serve(self) -> tuple[int, str]:
        """Run until node 0 ends the run; return the exit code and the reason.

        The code is 143 if node 0 is not reachable: the platform restarts both supervisors, which then rendezvous again.
        """
        while True:
            self._join()
            if self._join_error:
                return WORKER_RESTART, self._join_error
            if self.node.stop and self._coordinator is None:
                return WORKER_RESTART, f"{self.node.stop}: asked to stop"
            self._follow()
            self._end_ranks()
            if self._code is not None:
                return self._code, "node 0 has ended the run"
            if self.node.stop:
                return WORKER_RESTART, f"{self.node.stop}: asked to stop"
            self.node.log("node 0 disconnected: waiting for it to restart")

    def conclude(self, seconds: float) -> bool:
        if self._code == WORKER_DONE:
            self.node.mark_finished()
        mirrored = self.node.finish_files(seconds)
        if mirrored:
            self.node.log_saved_files()
        self.node.close_log()
        written = self.node.finish("record-writer", seconds)
        if self._coordinator is not None:
            self._coordinator.close()
        return mirrored and written

    def _join(self) -> None:
        topology = self.node.topology
        self._coordinator, self._disconnected = None, False
        hello = {"ports": free_ports(topology.processes)}
        post = self.node.loop.inbox.post
        where = (topology.master_addr, topology.rendezvous_port)
        self.node.log(f"{topology}; joining node 0 at {where[0]}:{where[1]}")
        began, limit_s = time.monotonic(), self._max_wait_s
        while True:
            self._join_error = ""
            left_s = min(_JOIN_ROUND_S, limit_s - (time.monotonic() - began))
            JoinThread(where, self._key, topology.node, hello, post, timeout_s=left_s).start()
            self.node.run_until(lambda: bool(self._coordinator or self._join_error or self.node.stop))
            if not self._join_error or time.monotonic() - began >= limit_s or self._has_ended():
                return
            self.node.log(f"still waiting for node 0: {self._join_error}")

    @property
    def _max_wait_s(self) -> float:
        """Return how long to wait for node 0: as it waits for us; a node that is billed no longer than that."""
        node, chosen = self.node, self.node.settings.peers_s
        if chosen is not None:
            return chosen
        limit_s = node.plan.limits.max_wait_s
        limit_s = math.inf if limit_s is None else limit_s
        return limit_s if usd_per_hour(node.plan) is None else min(limit_s, node.settings.release_s)

    def _has_ended(self) -> bool:
        """Whether the run has ended or was stopped while we waited, so that node 0 never comes."""
        folder = self.node.folder

        def look() -> bool:
            return folder.ended() is not None or folder.read_json(STOP) is not None

        try:
            return bool(self.node.run_in_thread(look))
        except HeadwayError:  # the store is down: keep waiting
            return False

    def _follow(self) -> None:
        """Execute commands until node 0 ends the run or disconnects.

        A stop request on this node is sent to node 0, which forwards it to all nodes.
        """
        while True:
            self.node.run_until(lambda: self._must_stop() or self._start_command is not None)
            order, self._start_command = self._start_command, None
            if order is None or self._must_stop():
                return
            self._start(order)

    def _must_stop(self) -> bool:
        if self.node.stop and not self._stop_sent:
            self._stop_sent = True
            self._send({"stopping": self.node.stop})
            self.node.ranks.signal(signal.SIGTERM)
        self._collect()
        self._report_load()
        return self._disconnected or self._code is not None or self._grace_over()

    def _report_load(self) -> None:
        """Tell node 0's watchdog how busy this node's ranks are, and whether they have printed anything."""
        load = self.node.measure_load()
        if load is not None:
            self._send({"load": asdict(load), "signs": self.node.signs_of_life - self._signs})
            self._signs = self.node.signs_of_life
        system = self.node.measure_system()
        if system is not None:
            self._send({"system": system})

    def _grace_over(self) -> bool:
        """Return whether this node's grace period is over, even though node 0 has not responded to the stop."""
        asked = self.node.stop_at
        return asked is not None and time.monotonic() > asked + self.node.ranks_grace_s

    def _collect(self) -> None:
        for end in self.node.ranks.reap():
            self.node.log(str(end))
            last = not self.node.ranks.running
            if last:
                self.node.sweep()
            self._report(end)

    def _report(self, end: RankExit) -> None:
        self._send({"exit": {**asdict(end), "lines": list(end.lines)}, "attempt": self._attempt})

    def _end_ranks(self) -> None:
        """Kill the ranks at once: without node 0 they can neither finish a step nor commit a checkpoint."""
        if self.node.ranks.running:
            self.node.ranks.kill()
            self.node.run_until(self._none_running, _KILL_TIMEOUT_S)

    def _none_running(self) -> bool:
        self._collect()
        return not self.node.ranks.running

    def _on_message(self, message: Any) -> None:
        if isinstance(message, Connected):
            self._coordinator = message.connection
        elif isinstance(message, RendezvousTimeout):
            self._join_error = message.why
        elif isinstance(message, Disconnected) and message.connection is self._coordinator:
            self._disconnected = True
        elif isinstance(message, PeerMessage):
            self._on_command(message.message)
        elif isinstance(message, StacksCollected):
            self._send({"stacks": [each.as_json() for each in message.stacks], "attempt": message.attempt})
        elif isinstance(message, StoreDown):
            self._event("store_down", error=message.error)
        elif isinstance(message, StoreRecovered):
            self._event("store_back", seconds=message.seconds)

    def _on_command(self, order: dict[str, Any]) -> None:
        do = order.get("do")
        if do == "signal":
            self._cancelled = True
        if do == "start":
            self._start_command, self._cancelled = order, False
        elif do == "signal" and order["number"] == signal.SIGKILL:
            self.node.ranks.kill()
        elif (
            do == "signal" and not self._stop_sent
        ):  # this node's ranks already got SIGTERM from us; a second one would end them at once
            self.node.ranks.signal(order["number"])
        elif do == "stacks":
            collect_stacks(self.node, self._attempt, self.node.loop.inbox.post)
        elif do == "end":
            self._code = int(order["code"])

    def _start(self, order: dict[str, Any]) -> None:
        assert self._coordinator is not None
        node, self._attempt = self.node, int(order["attempt"])
        node.open_log(self._attempt)
        if not self._started:
            self._started = True
            node.upload_leftover_logs(self._attempt)
        node.prepare_files(int(order.get("former", 0)), self._attempt)
        interface = interface_of(self._coordinator.own_address)
        topology = replace(node.topology, workers=tuple(order["workers"]), interface=interface)
        node.log(f"attempt {self._attempt}: {topology}")
        if self._cancelled or node.stop:
            for rank in topology.ranks:
                self._report(RankExit(rank=rank, code=WORKER_RESTART))
        else:
            node.start_ranks(topology, self._attempt, order)

    def _on_rank_record(self, rank: int, record: ControlRecord) -> None:
        if isinstance(record.get("event"), str):
            self._send({"record": record, "rank": rank})

    def _event(self, kind: str, **details: Any) -> None:
        self.node.log(f"{kind}: {details}")
        self._send({"event": {"kind": kind, "node": self.node.topology.node, **details}})

    def _send(self, message: dict[str, Any]) -> None:
        if self._coordinator is not None:
            self._coordinator.send(message)
