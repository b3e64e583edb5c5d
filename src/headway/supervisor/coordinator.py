"""The coordinator on node 0: holds the lease, starts the ranks on all nodes, and decides when to restart them.

All ranks of a run start and end together. Every start has its own attempt number, the fencing token of later writes.
"""

from __future__ import annotations

import signal
import socket
import time
from dataclasses import asdict, replace
from typing import Any

from headway.core.errors import FAILED, WORKER_AGAIN
from headway.core.plan import BEGINNING, BY_SCRIPT, again
from headway.supervisor import restart_policy
from headway.supervisor.node import Node
from headway.supervisor.processes import RankExit, Record, step_of
from headway.supervisor.rank_env import threads
from headway.supervisor.rendezvous import (
    Connected,
    Connection,
    Disconnected,
    PeerMessage,
    RendezvousServer,
    free_ports,
    require_free,
)
from headway.supervisor.restart_policy import AttemptHistory, AttemptResult, Outcome, Restart
from headway.supervisor.threads import Advanced, Heartbeat, StoreBack, StoreDown, now_text
from headway.supervisor.topology import NodeTopology, alone, ready

_BURIAL_S = 15.0  # how long to wait for killed ranks to exit


class Leader:
    """Coordinator of one run, from the first attempt of this supervisor to the run's last event."""

    def __init__(
        self,
        node: Node,
        heartbeat: Heartbeat,
        attempt: int,
        past: AttemptHistory,
        meeting: RendezvousServer | None,
        *,
        former: int = 0,
        refusal: str = "",
    ) -> None:
        """Open the attempt's event log and supervisor log.

        `former` is the newest attempt whose ranks were started, or 0. With a non-empty `refusal` no rank is started:
        the files that the earlier attempt left on this machine are saved, and the run ends as failed.
        """
        self.node, self._heartbeat, self._meeting = node, heartbeat, meeting
        self.attempt, self._past, self._former = attempt, past, former
        self._refusal = refusal
        self._began = time.monotonic()
        self._peers: dict[int, Connected] = {}
        self._exits: dict[int, RankExit] = {}
        self._crash: RankExit | None = None
        self._step: int | None = None  # the last step that any rank reported
        self._lost = ""
        self._concluded = False
        self._ending = False  # the ranks are being stopped: a failure from now on is not the cause
        self._budget_said = False
        self._cut_to = 0  # out of memory in this attempt: the number of micro-batches a rank would try next
        self._why = "first start" if attempt == 1 else "started again"
        node.heard, node.heed = self._heard, self._heed
        node.scribe.open_events(attempt)
        node.open(attempt)

    @property
    def spent_s(self) -> float:
        """Seconds of the budget spent over all attempts, by the monotonic clock."""
        return self._past.spent_s + time.monotonic() - self._began

    def supervise(self) -> Outcome:
        """Run attempts until the restart policy returns an outcome."""
        if self._refusal:
            self._record_attempt()
            self.node.adopt_files()
            return Outcome(state="failed", reason=self._refusal, exit_code=FAILED)
        while True:
            self._record_attempt()
            ending = self._run_once()
            found = restart_policy.judge(
                ending,
                self._past,
                retries=int(self.node.plan.job.get("retries", 0)),
                first_pause_s=self.node.settings.first_pause_s,
                same_place=self.node.settings.same_place,
                not_by_itself=restart_policy.costly_restart(self.node.plan, self.node.folder.name),
            )
            if isinstance(found, Outcome):
                return found
            self._past = self._past.with_ending(ending)
            if not self._prepare_next(found):
                return restart_policy.stopped(self.node.stop)

    def conclude(self, outcome: Outcome) -> bool:
        """Write the last event, flush everything and release the lease.

        Return False if the store did not accept all of it in time.
        """
        node, end = self.node, time.monotonic() + self._farewell_s()
        self._concluded = True
        for peer in self._peers.values():
            peer.connection.tell({"do": "end", "code": outcome.exit_code})
        mirrored = node.finish("mirror", end - time.monotonic())
        if not mirrored:
            node.say("the last files that the script wrote could not be saved in time")
        else:
            node.say_what_was_kept()
        crash: dict[str, Any] = (
            {} if outcome.crash is None else {"rank": outcome.crash.rank, "lines": list(outcome.crash.lines)}
        )
        node.say(f"{outcome.state}: {outcome.reason}")
        self.event("ended", state=outcome.state, reason=outcome.reason, exit_code=outcome.exit_code, **crash)
        node.close()
        # However long the file sync took, the last event gets at least a second.
        written = node.finish("scribe", max(1.0, end - time.monotonic()))
        if written:
            self._heartbeat.finish()
            node.finished("heartbeat", max(1.0, end - time.monotonic()))
        self._dismiss_peers(min(5.0, max(0.5, end - time.monotonic())))
        return mirrored and written

    def event(self, kind: str, *, soon: bool = True, **details: Any) -> None:
        record = {"kind": kind, "time": now_text(), "spent_s": round(self.spent_s, 3), **details}
        self.node.scribe.event(record, soon=soon)

    # One attempt

    def _record_attempt(self) -> None:
        world = self.node.world
        self.event(
            "attempt",
            number=self.attempt,
            host=socket.gethostname(),
            world={"nodes": world.nodes, "processes": world.processes, "size": world.size, "source": world.source},
            threads=threads(self.node.plan, world),
            held_from_s=round(self._past.spent_s, 3),
            why=self._why,
        )
        kind = self.node.plan.resume
        told = self._former and not self._refusal and kind in (BY_SCRIPT, BEGINNING)
        how = f"; {again(kind)}" if told else ""
        self.node.say(f"attempt {self.attempt}: {world}{how}")

    def _run_once(self) -> AttemptResult:
        self._exits, self._crash, self._step, self._ending, self._budget_said = {}, None, None, False, False
        self._cut_to = 0
        if self._left_s() == 0.0:
            return AttemptResult(overdue=True)
        self.node.prepare_files(self._former)
        absent = self._absent()
        if absent or self.node.stop:
            return AttemptResult(stop=self.node.stop, absent=absent)
        self._lost = ""
        self._start()
        overdue = not self.node.until(self._must_end, self._left_s())
        killed = self._end_ranks(overdue)
        self.node.sweep()
        return AttemptResult(
            exits=tuple(self._exits.values()),
            stop=self.node.stop,
            overdue=overdue,
            budget=self._budget_said,
            killed=killed,
            lost=self._lost,
            crash=self._crash,
            cut_to=self._cut_to,
        )

    def _left_s(self) -> float | None:
        budget = self.node.plan.limits.budget_s
        return None if budget is None else max(0.0, budget - self.spent_s)

    def _absent(self) -> str:
        """Wait for the other nodes to join; return a message naming those that did not, or "".

        Return early when a stop is requested.
        """
        node, world = self.node, self.node.world
        others = set(range(1, world.nodes))
        if not others <= self._peers.keys():
            node.say(f"waiting for {_nodes(others - self._peers.keys(), world.nodes)}")
        waited = node.settings.peers_s
        if node.until(lambda: bool(node.stop) or others <= self._peers.keys(), waited):
            return ""
        missing = _nodes(others - self._peers.keys(), world.nodes)
        return f"{missing} did not join: waited {waited:g} s on port {world.meeting_port}"

    def _start(self) -> None:
        world = self._world_now()
        left = self._left_s()
        told = {"left_s": left, "spent_s": self.spent_s, "parts": self._past.parts}
        order = {"do": "start", "attempt": self.attempt, "workers": list(world.workers), **told}
        order["former"] = self._former
        if self.node.plan.job.get("script"):
            self.event("started", number=self.attempt)
        for peer in self._peers.values():
            peer.connection.tell(order)
        self.node.start_ranks(world, self.attempt, told)
        self._former = self.attempt

    def _world_now(self) -> NodeTopology:
        world = self.node.world
        if world.master_port:
            require_free(world.master_port)
        if world.nodes == 1:
            return alone(world)
        hosts = {0: world.master_addr} | {n: peer.connection.peer_address for n, peer in self._peers.items()}
        ports = {0: free_ports(world.processes)} | {n: list(peer.hello["ports"]) for n, peer in self._peers.items()}
        # Use the address at which the other nodes reach us: our host name may resolve to loopback here.
        own = next(iter(self._peers.values())).connection.own_address
        return ready(world, hosts=hosts, ports=ports, own_address=own)

    def _must_end(self) -> bool:
        self._collect()
        told = any(end.code == WORKER_AGAIN for end in self._exits.values())
        return bool(self.node.stop or self._crash or self._lost or told or self._all_ended())

    def _all_ended(self) -> bool:
        self._collect()
        size = self.node.world.processes
        there = {0, *self._peers}
        return all(rank in self._exits for node in there for rank in range(node * size, (node + 1) * size))

    def _end_ranks(self, overdue: bool) -> tuple[int, ...]:
        """Send SIGTERM, wait for the grace period, send SIGKILL; return the ranks that had to be killed."""
        if self._all_ended():
            return ()
        self._ending = True
        if self.node.stop:
            self.event("stop_asked", by=self.node.stop)
        cause = self.node.stop or ("the budget is spent" if overdue else "")
        if cause:
            self.node.say(f"{cause}: stopping the ranks")
        elif not self._crash and not self._lost:
            # Someone else told a rank to stop. Ranks share the stop flag at every step, so all stop by themselves.
            self.node.until(self._all_ended, self.node.settings.halt_s)
        patience = self.node.ranks_grace_s
        if self._crash or self._lost:
            patience = min(patience, self.node.settings.halt_s)
        return self._force(patience)

    def _force(self, patience_s: float) -> tuple[int, ...]:
        self._tell_ranks(signal.SIGTERM)
        if self.node.until(self._all_ended, patience_s):
            return ()
        left = tuple(rank for rank in range(self.node.world.size) if rank not in self._exits)
        self._tell_ranks(signal.SIGKILL)
        self.node.until(self._all_ended, _BURIAL_S)
        return left

    def _tell_ranks(self, number: signal.Signals) -> None:
        for peer in self._peers.values():
            peer.connection.tell({"do": "signal", "number": int(number)})
        if number == signal.SIGKILL:
            self.node.ranks.kill()
        else:
            self.node.ranks.signal(number)

    # Messages from ranks, nodes and threads

    def _collect(self) -> None:
        for end in self.node.ranks.ends():
            self._rank_ended(end)

    def _rank_ended(self, end: RankExit) -> None:
        first = end.failed and not (self._ending or self._crash or self.node.stop or self._lost)
        if end.step is None:
            end = replace(end, step=self._step)  # most ranks never report steps, and all ranks are at the same one
        self._exits[end.rank] = end
        if first:
            self._crash = end
        if end.code != 0:
            where = None if self._cut_to > self._past.parts else restart_policy.place_of(end)
            place: dict[str, Any] = {"first": True, "place": where} if first else {}
            self.event("rank_exit", **{**asdict(end), "lines": list(end.lines)}, **place)
            self.node.say(str(end))

    def _heard(self, rank: int, record: Record) -> None:
        """Handle a control record from a rank of this node."""
        self._step = step_of(record, self._step)
        progress = record.get("progress")
        if isinstance(progress, dict) and rank == 0:
            self.node.scribe.progress({**progress, "attempt": self.attempt, "spent_s": round(self.spent_s, 3)})
        elif isinstance(record.get("event"), str):
            self._rank_event(rank, record)

    def _rank_event(self, rank: int, record: Record) -> None:
        details = {
            key: value for key, value in record.items() if key not in ("event", "kind", "soon", "spent_s", "time")
        }
        if record["event"] == "budget":
            self._budget_said = True
        if record["event"] == "failed" and isinstance(record.get("cut_to"), int):
            self._cut_to = max(self._cut_to, record["cut_to"])
        self.event(record["event"], soon=False, **{"rank": rank, **details})

    def _heed(self, message: Any) -> None:
        if isinstance(message, StoreDown):
            self.event("store_down", error=message.error)
            self.node.say(
                f"the store is unreachable: {message.error}; training continues, records are kept on the local disk"
            )
        elif isinstance(message, StoreBack):
            self.event("store_back", seconds=message.seconds)
            self.node.say(f"the store is reachable again after {message.seconds:g} s")
        elif isinstance(message, Advanced):
            self.attempt = message.attempt
        elif isinstance(message, Connected):
            self._joined(message)
        elif isinstance(message, Disconnected):
            self._gone(message.node, message.connection, message.why)
        elif isinstance(message, PeerMessage) and self._is_current(message.node, message.connection):
            self._said(message.node, message.message)

    def _joined(self, peer: Connected) -> None:
        former = self._peers.get(peer.node)
        if former is not None:
            self._gone(peer.node, former.connection, "it was restarted")
            former.connection.close()
        self._peers[peer.node] = peer
        self.node.say(f"node {peer.node} of {self.node.world.nodes} joined from {peer.connection.peer_address}")

    def _is_current(self, node: int, connection: Connection) -> bool:
        """Return False for an older connection of a node that has since rejoined."""
        return node in self._peers and self._peers[node].connection is connection

    def _gone(self, node: int, connection: Connection, why: str) -> None:
        if not self._is_current(node, connection):
            return
        del self._peers[node]
        if self._concluded:
            return
        self.node.say(f"node {node} of {self.node.world.nodes} disconnected: {why}")
        if not self._lost:
            self._lost = f"node {node} of {self.node.world.nodes} disconnected: {why}"

    def _said(self, node: int, message: dict[str, Any]) -> None:
        if "exit" in message and message["attempt"] == self.attempt:
            told = {**message["exit"], "lines": tuple(message["exit"]["lines"])}
            self._rank_ended(RankExit(**told))
        elif "record" in message:
            self._rank_event(int(message["rank"]), message["record"])
        elif "event" in message:
            self.event(**message["event"])
        elif "stopping" in message and not self.node.stop:
            self.node.ask_to_stop(f"{message['stopping']} on node {node}")

    # Between attempts

    def _prepare_next(self, again: Restart) -> bool:
        """Pause, then increment the attempt number; return False if a stop was requested meanwhile."""
        node = self.node
        self._past = restart_policy.restarted(self._past, again)
        free = {"free": True} if again.free else {}
        self.event("restart", count=again.count, pause_s=again.pause_s, reason=again.reason, **free)
        retries = int(node.plan.job.get("retries", 0))
        # The crash itself, or the lost node, has been logged when it happened.
        told = f"{again.reason}; restarting" if again.free else f"restarting in {again.pause_s:g} s"
        node.say(told if again.free else f"{told} (retry {again.count} of {retries})")
        self._lost = ""
        if node.until(lambda: bool(node.stop), again.pause_s):
            return False
        former = self.attempt
        self._heartbeat.advance()
        node.until(lambda: self.attempt > former or bool(node.stop))
        if node.stop:
            return False
        self._why = f"restart {again.count}: {again.reason}"
        node.scribe.open_events(self.attempt)
        node.open(self.attempt)
        return True

    def _farewell_s(self) -> float:
        """Return the time limit for `conclude`: the rest of the grace period after a stop, else `flush_s`."""
        node = self.node
        if node.stop_at is None:
            return node.settings.flush_s
        return max(1.0, node.stop_at + node.grace_s - 0.5 - time.monotonic())

    def _dismiss_peers(self, patience_s: float) -> None:
        """Wait for the other nodes, which were told to end, to close their connections; then close the server."""
        if self._peers:
            self.node.until(lambda: not self._peers, patience_s)
        if self._meeting is not None:
            self._meeting.close()


def _nodes(missing: set[int], nodes: int) -> str:
    listed = ", ".join(map(str, sorted(missing)))
    return f"node {listed} of {nodes}" if len(missing) == 1 else f"nodes {listed} of {nodes}"
