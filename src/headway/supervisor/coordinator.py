"""The coordinator on node 0: holds the lease, starts the ranks on all nodes, and decides when to restart them.

All ranks of a run start and end together. Every start has its own attempt number, the fencing token of later writes.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from headway.core.errors import FAILED, WORKER_RESTART, HeadwayError
from headway.core.plan import BEGINNING, BY_SCRIPT, EXACT, UNKNOWN, describe_next_start
from headway.core.program import is_project
from headway.diagnose.matching import user_rules
from headway.rundir.lease import spent_usd, usd_per_hour
from headway.rundir.submission import utc_now
from headway.storage import local_path
from headway.supervisor import restart_policy
from headway.supervisor.background import AttemptAdvanced, Heartbeat, StoreDown, StoreRecovered
from headway.supervisor.log_pipeline import Spool
from headway.supervisor.node import Node
from headway.supervisor.node_wait import NodeWait
from headway.supervisor.output_observer import OutputObserver, sources_of, starts_fresh
from headway.supervisor.processes import ControlRecord, RankExit, reported_step
from headway.supervisor.rank_env import omp_threads
from headway.supervisor.rendezvous import (
    Connected,
    Connection,
    Disconnected,
    PeerMessage,
    RendezvousServer,
    free_ports,
    require_free_port,
)
from headway.supervisor.restart_policy import AttemptHistory, AttemptOutcome, AttemptResult, Restart
from headway.supervisor.stall_monitor import StacksCollected, StallMonitor
from headway.supervisor.topology import NodeTopology, single_node, with_workers

_LEAST_GRACE_S = 1.0  # after SIGTERM, even if the budget is spent
_EPOCHS_LOST = 2  # a program that begins at its first epoch again after fewer may have had no checkpoint yet
_KILL_TIMEOUT_S = 15.0  # how long to wait for killed ranks to exit


class Coordinator:
    """Coordinator of one run, from the first attempt of this supervisor to the run's last event."""

    def __init__(
        self,
        node: Node,
        heartbeat: Heartbeat,
        attempt: int,
        history: AttemptHistory,
        rendezvous: RendezvousServer | None,
        *,
        last_attempt: int = 0,
        refusal: str = "",
    ) -> None:
        """Open the attempt's event log and supervisor log.

        `last_attempt` is the newest attempt whose ranks were started, or 0. With a non-empty `refusal` no rank is
        started: the files that the earlier attempt left on this machine are saved, and the run ends as failed.
        """
        self.node, self._heartbeat, self._rendezvous = node, heartbeat, rendezvous
        self.attempt, self._history, self._last_started = attempt, history, last_attempt
        self._refusal = refusal
        self._rules = user_rules(node.plan.job)
        self._monitor = StallMonitor(node, self.event, self._send_peers)
        self._progress: dict[str, Any] = {}  # the newest, without the condition
        self._system: dict[str, Mapping[str, Any]] = {}  # the newest sample of each node
        self._condition: dict[str, Any] | None = None
        self._started_at = time.monotonic()
        self._free_s = 0.0  # of the time since then: nodes were missing
        self._peers: dict[int, Connected] = {}
        self._exits: dict[int, RankExit] = {}
        self._crash: RankExit | None = None
        self._step: int | None = None  # the last step that any rank reported
        self._lost_node = ""
        self._closing = False
        self._ending = False  # the ranks are being stopped: a failure from now on is not the cause
        self._budget_reported = False
        self._next_micro_batches = 0  # out of memory in this attempt: the number of micro-batches a rank would try next
        self._ended_by = ""  # why a program that does not exit counts as finished
        self._interrupted = False  # a stop ended a program that knows nothing of Headway
        self._began_again = ""  # a project that might have continued is at its first epoch again
        self._epoch_before = self._former_epoch() if last_attempt else 0
        self._epoch_now: int | None = None
        self._phases = False  # epochs are counted from 1 several times
        self._start_reason = "first start" if attempt == 1 else "started again"
        node.on_rank_record, node.on_message = self._on_rank_record, self._on_message
        node.record_writer.open_events(attempt)
        node.open_log(attempt)

    @property
    def spent_s(self) -> float:
        """Seconds of the budget spent over all attempts, by the monotonic clock."""
        return self._history.spent_s + time.monotonic() - self._started_at - self._free_s

    def supervise(self) -> AttemptOutcome:
        """Run attempts until the restart policy returns an outcome."""
        if self._refusal:
            self._record_attempt()
            self.node.register_files()
            return AttemptOutcome(state="failed", reason=self._refusal, exit_code=FAILED)
        while True:
            self._record_attempt()
            result = self._run_attempt()
            decision = restart_policy.decide(
                result,
                self._history,
                retries=int(self.node.plan.job.get("retries", 0)),
                first_pause_s=self.node.settings.first_pause_s,
                max_same_step_crashes=self.node.settings.max_same_step_crashes,
                no_auto_restart=restart_policy.costly_restart(
                    self.node.plan, self.node.folder.name, began_again=self._began_again
                ),
                rules=self._rules,
            )
            self._record_decision(decision)
            if isinstance(decision, AttemptOutcome):
                if decision.not_retried:
                    self.event("not_retried", reason=decision.not_retried)
                return decision
            self._history = self._history.with_result(result, decision.fault)
            if not self._prepare_next(decision):
                return restart_policy.stopped(self.node.stop)

    def _record_decision(self, decision: AttemptOutcome | Restart) -> None:
        """Record the class of a crash, and what follows from it."""
        fault = decision.fault
        if fault is None:
            return
        known: dict[str, Any] = {"name": fault.name, "fix": fault.fix} if fault.name else {}
        known |= {"class": fault.retry.value, "cause": fault.why}
        pause = f" in {decision.pause_s:g} s" if isinstance(decision, Restart) and decision.pause_s else ""
        decided = f"retried{pause}" if isinstance(decision, Restart) else "not retried"
        self.event("fault", decision=decided, reason=decision.reason, **known)
        self.node.log(f"{fault.name or 'failure'} ({fault.retry.value}): {fault.why}: {decided}")

    def conclude(self, outcome: AttemptOutcome) -> bool:
        """Write the last event, flush everything and release the lease.

        Return False if the store did not accept all of it in time.
        """
        node, end = self.node, time.monotonic() + self._close_timeout_s()
        self._closing = True
        for peer in self._peers.values():
            peer.connection.send({"do": "end", "code": outcome.exit_code})
        if outcome.state == "finished":
            node.mark_finished()
        mirrored = node.finish_files(end - time.monotonic())
        if not mirrored:
            node.log("the last files that the script wrote could not be saved in time")
        else:
            node.log_saved_files()
        crash: dict[str, Any] = (
            {} if outcome.crash is None else {"rank": outcome.crash.rank, "lines": list(outcome.crash.lines)}
        )
        node.log(f"{outcome.state}: {outcome.reason}")
        self.event("ended", state=outcome.state, reason=outcome.reason, exit_code=outcome.exit_code, **crash)
        node.close_log()
        # However long the file sync took, the last event gets at least a second.
        written = node.finish("record-writer", max(1.0, end - time.monotonic()))
        if written:
            self._heartbeat.finish()
            node.wait_finished("heartbeat", max(1.0, end - time.monotonic()))
        self._close_peers(min(5.0, max(0.5, end - time.monotonic())))
        return mirrored and written

    def event(self, kind: str, *, soon: bool = True, **details: Any) -> None:
        record = {"kind": kind, "time": utc_now(), "spent_s": round(self.spent_s, 3), **details}
        self.node.record_writer.event(record, soon=soon)

    # One attempt

    def _record_attempt(self) -> None:
        topology = self.node.topology
        self.event(
            "attempt",
            number=self.attempt,
            host=socket.gethostname(),
            world={
                "nodes": topology.nodes,
                "processes": topology.processes,
                "size": topology.size,
                "source": topology.source,
            },
            threads=omp_threads(self.node.plan, topology),
            held_from_s=round(self._history.spent_s, 3),
            why=self._start_reason,
        )
        kind = self.node.plan.resume
        show_resume = self._last_started and not self._refusal and kind not in (EXACT, UNKNOWN)
        how = f"; {describe_next_start(kind)}" if show_resume else ""
        self.node.log(f"attempt {self.attempt}: {topology}{how}")

    def _run_attempt(self) -> AttemptResult:
        self._exits, self._crash, self._step, self._ending, self._budget_reported = {}, None, None, False, False
        self._next_micro_batches, self._ended_by, self._interrupted = 0, "", False
        if self._epoch_now is not None:
            self._epoch_before, self._epoch_now = self._epoch_now, None
        if self._left_s() == 0.0:
            return AttemptResult(overdue=True)
        self.node.prepare_files(self._last_started, self.attempt)
        wait = self._wait_for_nodes()
        if wait is not None or self.node.stop:
            absent, released = (wait.absent, wait.released) if wait else ("", "")
            return AttemptResult(stop=self.node.stop, absent=absent, released=released, overdue=self._left_s() == 0.0)
        self._lost_node = ""
        self._monitor.begin(self.attempt)
        self._start()
        overdue = not self.node.run_until(self._must_end, self._working_s())
        if overdue and self._budget_reported:  # they export already, in the time that they reserved for it
            overdue = not self.node.run_until(self._must_end, self._left_s())
        killed = self._end_ranks(overdue)
        self.node.sweep()
        return AttemptResult(
            exits=tuple(self._exits.values()),
            stop=self.node.stop,
            interrupted=self._interrupted,
            overdue=overdue,
            budget=self._budget_reported,
            killed=killed,
            lost=self._lost_node,
            crash=self._crash,
            micro_batches=self._next_micro_batches,
            ended_by=self._ended_by,
        )

    def _left_s(self) -> float | None:
        budget = self.node.plan.limits.budget_s
        return None if budget is None else max(0.0, budget - self.spent_s)

    def _working_s(self) -> float | None:
        """Return the time until the ranks are told to stop: the grace period lies inside the budget.

        Ranks with Headway's loop end by themselves before, with an export (`training.step_boundary` reserves a fifth).
        """
        left = self._left_s()
        share = 10 if self.node.plan.resume == EXACT else 2
        return None if left is None else left - min(self.node.ranks_grace_s, left / share)

    def _wait_for_nodes(self) -> NodeWait | None:
        """Wait until all nodes have joined; return the wait, if there was one.

        Return early when a stop is requested, the budget is spent, or the wait is over its limits.
        """
        node, others = self.node, set(range(1, self.node.topology.nodes))
        if others <= self._peers.keys():
            return None
        chosen = node.settings.peers_s
        wait = NodeWait(
            run=node.folder.name,
            nodes=node.topology.nodes,
            max_wait_s=node.plan.limits.max_wait_s if chosen is None else chosen,
            release_s=node.settings.release_s,
            usd_per_hour=usd_per_hour(node.plan),
        )
        wait.advance(0.0, others - self._peers.keys())
        node.log(f"waiting for {wait.names}")
        self.event("waiting", have=1 + len(self._peers), need=wait.nodes, missing=sorted(others - self._peers.keys()))
        began, free_before, last = time.monotonic(), self._free_s, time.monotonic()

        def over() -> bool:
            nonlocal last
            now, missing = time.monotonic(), others - self._peers.keys()
            wait.advance(now - last, missing or others)
            last = now
            self._free_s = self._heartbeat.free_s = free_before + wait.free_s
            self._set_condition(wait.condition if missing else None)
            return bool(node.stop or not missing or wait.absent or wait.released or self._left_s() == 0.0)

        node.run_until(over)
        self._set_condition(None)
        self.event("waiting_over", seconds=round(time.monotonic() - began, 1))
        return wait if others - self._peers.keys() else None

    def _start(self) -> None:
        topology = self._complete_topology()
        left = self._left_s()
        facts = {"left_s": left, "spent_s": self.spent_s, "parts": self._history.micro_batches}
        message = {"do": "start", "attempt": self.attempt, "workers": list(topology.workers), **facts}
        message["former"] = self._last_started
        if is_project(self.node.plan.job):
            self.event("started", number=self.attempt, folder=str(self.node.workdirs.code))
        for peer in self._peers.values():
            peer.connection.send(message)
        self.node.start_ranks(topology, self.attempt, facts, self._make_observer)
        self._last_started = self.attempt

    def _make_observer(self, log: Spool) -> OutputObserver | None:
        """Return the observer of a script's output and log files, or None if it is not to be observed."""
        node, sources, attempt = self.node, sources_of(self.node.plan), self.attempt
        if sources is None:
            return None
        where = node.workdirs
        return OutputObserver(
            sources,
            log,
            (where.code, where.files),
            fresh=starts_fresh(node.plan, self._last_started),
            excluded=(where.work, where.spool, where.resume, *filter(None, [local_path(node.folder.url)])),
            on_progress=self._report_progress,
            on_metrics=lambda record: self._on_metrics(attempt, record),
            note=node.log,
        )

    def _former_epoch(self) -> int:
        """Return the epoch that the attempt before this supervisor's first one had reached, from 0."""
        try:
            return int((self.node.folder.progress() or {}).get("epoch") or 0)
        except HeadwayError:
            return 0

    def _check_continuation(self, epoch: int) -> None:
        """Report a program that begins at its first epoch again, although its sources load something.

        Not one with `resume`, which may continue from a best checkpoint of its first epoch.
        """
        first, last = self._epoch_now is None, self._epoch_now or 0
        self._epoch_now = epoch
        self._phases = self._phases or epoch < last
        plan = self.node.plan
        may_continue = plan.resume == BY_SCRIPT and not (plan.job.get("resume") or {}).get("args")
        if not first or epoch or self._phases or self._epoch_before < _EPOCHS_LOST or not may_continue:
            return
        reached = self._epoch_before + 1
        self._began_again = f"attempt {self.attempt} is at epoch 1 again, and epoch {reached} was reached before"
        self.event("began_again", number=self.attempt, reached=reached)
        self.node.log(f"{self._began_again}: the program does not seem to continue from its files")

    def _on_metrics(self, attempt: int, record: Mapping[str, Any]) -> None:
        self.node.signs_of_life += 1
        self.node.record_writer.metrics(attempt, record)

    def _report_progress(self, progress: dict[str, Any]) -> None:
        if progress.get("epoch") is not None:
            self._check_continuation(int(progress["epoch"]))
        usd = spent_usd(self.node.plan, self.spent_s)
        cost = {} if usd is None else {"usd": round(usd, 4)}
        self.node.signs_of_life += 1
        self._publish_progress({**progress, **cost})

    def _complete_topology(self) -> NodeTopology:
        topology = self.node.topology
        if topology.master_port:
            require_free_port(topology.master_port)
        if topology.nodes == 1:
            return single_node(topology)
        hosts = {0: topology.master_addr} | {n: peer.connection.peer_address for n, peer in self._peers.items()}
        ports = {0: free_ports(topology.processes)} | {n: list(peer.hello["ports"]) for n, peer in self._peers.items()}
        # Use the address at which the other nodes reach us: our host name may resolve to loopback here.
        own_address = next(iter(self._peers.values())).connection.own_address
        return with_workers(topology, hosts=hosts, ports=ports, own_address=own_address)

    def _watch(self) -> None:
        """Let the watchdog look at the ranks, and publish what it says."""
        self._monitor.check()
        if self._monitor.crash is not None and self._crash is None:
            self._crash = crash = replace(self._monitor.crash, step=self._step)
            self.event("rank_exit", **{**asdict(crash), "lines": list(crash.lines)}, first=True,
                       place=restart_policy.crash_step(crash))  # fmt: skip
            self.node.log(str(crash))
        self._set_condition(self._monitor.condition)
        system = self.node.measure_system()
        if system is not None:
            self._record_system(self.node.topology.node, system)

    def _record_system(self, node: int, sample: Mapping[str, Any]) -> None:
        """Record a sample of a machine: in the run folder, and the newest of each node with the progress."""
        self._system[str(node)] = sample
        where = {"time": utc_now(), "node": node, "step": self._step}
        self.node.record_writer.system(self.attempt, {**where, **sample})
        self._publish_progress(self._progress)

    def _set_condition(self, condition: dict[str, Any] | None) -> None:
        """Publish why the run does not advance, in the progress record; None if it does."""
        if condition != self._condition:
            self._condition = condition
            self._publish_progress(self._progress)

    def _publish_progress(self, progress: dict[str, Any]) -> None:
        self._progress = progress
        condition = {} if self._condition is None else {"condition": self._condition}
        system = {"system": self._system} if self._system else {}
        record = {**progress, **condition, **system, "attempt": self.attempt, "spent_s": round(self.spent_s, 3)}
        self.node.record_writer.progress(record)

    def _send_peers(self, message: dict[str, Any]) -> int:
        for peer in self._peers.values():
            peer.connection.send({**message, "attempt": self.attempt})
        return len(self._peers)

    def _must_end(self) -> bool:
        self._collect()
        self._watch()
        restart_requested = any(end.code == WORKER_RESTART for end in self._exits.values())
        if not self._all_ended():
            self._ended_by = self.node.end_condition.reason()
        stopping = self._ended_by or self.node.stop or self._crash or self._lost_node
        return bool(stopping or restart_requested or self._all_ended())

    def _all_ended(self) -> bool:
        self._collect()
        size = self.node.topology.processes
        there = {0, *self._peers}
        return all(rank in self._exits for node in there for rank in range(node * size, (node + 1) * size))

    def _end_ranks(self, overdue: bool) -> tuple[int, ...]:
        """Send SIGTERM, wait for the grace period, send SIGKILL; return the ranks that had to be killed."""
        if self._all_ended():
            return ()
        self._ending = True
        if self.node.stop:
            self.event("stop_asked", by=self.node.stop)
        cause = self.node.stop or self._ended_by or ("the budget is spent" if overdue else "")
        if cause:
            self.node.log(f"{cause}: stopping the ranks")
        elif not self._crash and not self._lost_node:
            # Someone else told a rank to stop. Ranks share the stop flag at every step, so all stop by themselves.
            self.node.run_until(self._all_ended, self.node.settings.halt_s)
        grace_s = self.node.ranks_grace_s
        if self._crash or self._lost_node:
            grace_s = min(grace_s, self.node.settings.halt_s)
        left = self._left_s()
        if left is not None:
            grace_s = min(grace_s, max(_LEAST_GRACE_S, left))
        return self._terminate_ranks(grace_s)

    def _terminate_ranks(self, grace_s: float) -> tuple[int, ...]:
        self._interrupted = bool(self.node.stop) and self.node.plan.resume in (BY_SCRIPT, BEGINNING)
        self._signal_ranks(signal.SIGTERM)
        if self.node.run_until(self._all_ended, grace_s):
            return ()
        left = tuple(rank for rank in range(self.node.topology.size) if rank not in self._exits)
        self._signal_ranks(signal.SIGKILL)
        self.node.run_until(self._all_ended, _KILL_TIMEOUT_S)
        return left

    def _signal_ranks(self, number: signal.Signals) -> None:
        for peer in self._peers.values():
            peer.connection.send({"do": "signal", "number": int(number)})
        if number == signal.SIGKILL:
            self.node.ranks.kill()
        else:
            self.node.ranks.signal(number)

    # Messages from ranks, nodes and threads

    def _collect(self) -> None:
        for end in self.node.ranks.reap():
            self._rank_ended(end)

    def _with_exception(self, end: RankExit) -> RankExit:
        from headway.core.python_errors import last_error

        error = last_error(end.lines)
        return end if error is None else replace(end, exception=error.describe(str(self.node.workdirs.code)))

    def _rank_ended(self, end: RankExit) -> None:
        first = end.failed and not (self._ending or self._crash or self.node.stop or self._lost_node)
        if end.step is None:
            end = replace(end, step=self._step)  # most ranks never report steps, and all ranks are at the same one
        if end.failed:
            end = self._with_exception(end)
        self._exits[end.rank] = end
        if first and self._monitor.stalled_crash is not None:  # a rank that waited too long for the stuck one
            end = self._exits[end.rank] = replace(self._monitor.stalled_crash, rank=end.rank, step=end.step)
        if first:
            self._crash = end
        if end.code != 0:
            where = None if self._next_micro_batches > self._history.micro_batches else restart_policy.crash_step(end)
            place: dict[str, Any] = {"first": True, "place": where} if first else {}
            self.event("rank_exit", **{**asdict(end), "lines": list(end.lines)}, **place)
            self.node.log(str(end))

    def _on_rank_record(self, rank: int, record: ControlRecord) -> None:
        """Handle a control record from a rank of this node."""
        self._step = reported_step(record, self._step)
        self._monitor.on_record(rank, record)
        progress = record.get("progress")
        if rank == 0 and self.node.observer is not None:
            self.node.observer.stop()
        if isinstance(progress, dict) and rank == 0:
            self._publish_progress(dict(progress))
        elif isinstance(record.get("metrics"), dict) and rank == 0:  # from `headway.integrations`
            self.node.record_writer.metrics(self.attempt, record["metrics"])
        elif isinstance(record.get("event"), str):
            self._rank_event(rank, record)

    def _rank_event(self, rank: int, record: ControlRecord) -> None:
        details = {
            key: value for key, value in record.items() if key not in ("event", "kind", "soon", "spent_s", "time")
        }
        if record["event"] == "budget":
            self._budget_reported = True
        if record["event"] == "failed" and isinstance(record.get("cut_to"), int):
            self._next_micro_batches = max(self._next_micro_batches, record["cut_to"])
        self.event(record["event"], soon=False, **{"rank": rank, **details})

    def _on_message(self, message: Any) -> None:
        if isinstance(message, StoreDown):
            self.event("store_down", error=message.error)
            self.node.log(
                f"the store is unreachable: {message.error}; training continues, records are kept on the local disk"
            )
        elif isinstance(message, StoreRecovered):
            self.event("store_back", seconds=message.seconds)
            self.node.log(f"the store is reachable again after {message.seconds:g} s")
        elif isinstance(message, StacksCollected):
            self._monitor.on_message(message)
        elif isinstance(message, AttemptAdvanced):
            self.attempt = message.attempt
        elif isinstance(message, Connected):
            self._on_connected(message)
        elif isinstance(message, Disconnected):
            self._on_disconnected(message.node, message.connection, message.why)
        elif isinstance(message, PeerMessage) and self._is_current(message.node, message.connection):
            self._on_peer_message(message.node, message.message)

    def _on_connected(self, peer: Connected) -> None:
        previous = self._peers.get(peer.node)
        if previous is not None:
            self._on_disconnected(peer.node, previous.connection, "it was restarted")
            previous.connection.close()
        self._peers[peer.node] = peer
        self.node.log(f"node {peer.node} of {self.node.topology.nodes} joined from {peer.connection.peer_address}")

    def _is_current(self, node: int, connection: Connection) -> bool:
        """Return False for an older connection of a node that has since rejoined."""
        return node in self._peers and self._peers[node].connection is connection

    def _on_disconnected(self, node: int, connection: Connection, why: str) -> None:
        if not self._is_current(node, connection):
            return
        del self._peers[node]
        self._monitor.watchdog.forget(node)
        if self._closing:
            return
        self.node.log(f"node {node} of {self.node.topology.nodes} disconnected: {why}")
        if not self._lost_node:
            self._lost_node = f"node {node} of {self.node.topology.nodes} disconnected: {why}"

    def _on_peer_message(self, node: int, message: dict[str, Any]) -> None:
        if "exit" in message and message["attempt"] == self.attempt:
            fields = {**message["exit"], "lines": tuple(message["exit"]["lines"])}
            self._rank_ended(RankExit(**fields))
        elif "load" in message or "stacks" in message:
            self._monitor.on_peer(node, message)
        elif "system" in message:
            self._record_system(node, message["system"])
        elif "record" in message:
            self._rank_event(int(message["rank"]), message["record"])
        elif "event" in message:
            self.event(**message["event"])
        elif "stopping" in message and not self.node.stop:
            self.node.request_stop(f"{message['stopping']} on node {node}")

    # Between attempts

    def _prepare_next(self, restart: Restart) -> bool:
        """Pause, then increment the attempt number; return False if a stop was requested meanwhile."""
        node = self.node
        self._history = restart_policy.restarted(self._history, restart)
        free = {"free": True} if restart.not_counted else {}
        self.event("restart", count=restart.count, pause_s=restart.pause_s, reason=restart.reason, **free)
        retries = int(node.plan.job.get("retries", 0))
        # The crash itself, or the lost node, has been logged when it happened.
        text = f"{restart.reason}; restarting" if restart.not_counted else f"restarting in {restart.pause_s:g} s"
        node.log(text if restart.not_counted else f"{text} (retry {restart.count} of {retries})")
        self._lost_node = ""
        if node.run_until(lambda: bool(node.stop), restart.pause_s):
            return False
        previous = self.attempt
        self._heartbeat.advance()
        node.run_until(lambda: self.attempt > previous or bool(node.stop))
        if node.stop:
            return False
        self._start_reason = f"restart {restart.count}: {restart.reason}"
        node.record_writer.open_events(self.attempt)
        node.open_log(self.attempt)
        return True

    def _close_timeout_s(self) -> float:
        """Return the time limit for `conclude`: the rest of the grace period after a stop, else `flush_s`."""
        node = self.node
        if node.stop_at is None:
            return node.settings.flush_s
        return max(1.0, node.stop_at + node.grace_s - 0.5 - time.monotonic())

    def _close_peers(self, timeout_s: float) -> None:
        """Wait for the other nodes, which were told to end, to close their connections; then close the server."""
        if self._peers:
            self.node.run_until(lambda: not self._peers, timeout_s)
        if self._rendezvous is not None:
            self._rendezvous.close()
