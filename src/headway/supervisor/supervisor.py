"""Run a supervisor from start to exit: read the plan, take the lease (node 0) or join node 0, run the ranks, clean up.

Also the steps after the last event: the webhook notification and `--keep-on-failure`. `event_loop` describes what a
signal does.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from headway.core.errors import (
    FAILED,
    WORKER_DONE,
    WORKER_RESTART,
    HeadwayError,
    NotThere,
    StoreError,
    Transient,
)
from headway.core.plan import UNKNOWN, Plan
from headway.core.platform import timing
from headway.core.retry import NO_LIMIT, RetryPolicy, poll, retry
from headway.rundir import lease as leases
from headway.rundir.layout import PLAN, SUBMISSION, RunFolder, SegmentWriter
from headway.rundir.lease import Lease, spent_s
from headway.rundir.submission import utc_now
from headway.rundir.teardown import keep_on_failure_s
from headway.storage import join, open_store
from headway.supervisor import rendezvous, restart_policy
from headway.supervisor.background import Heartbeat, stop_reason
from headway.supervisor.coordinator import Coordinator
from headway.supervisor.event_loop import Loop, Signals, StopNow, StopRequested
from headway.supervisor.log_pipeline import ConsoleWriter
from headway.supervisor.node import ForcedStop, Node, RunTakenOver, SupervisorSettings
from headway.supervisor.processes import OrphanReaper
from headway.supervisor.rank_env import (
    NAMES,
    Secrets,
    make_node_folders,
    remove_workdirs,
    resolve_secrets,
    take_over,
)
from headway.supervisor.restart_policy import AttemptOutcome
from headway.supervisor.topology import NodeTopology, detect_topology

# After the last event


def send_notification(node: Node, outcome: AttemptOutcome, spent_s: float) -> None:
    """Post to the webhook, if one is configured, unless the run was stopped: then someone waits for us to exit."""
    if outcome.state != "stopped" and node.stop_at is None:
        node.notify(outcome.state, outcome.reason, spent_s)


def keep_after_failure(node: Node, outcome: AttemptOutcome, spent_s: float, sleep: Callable[[float], None]) -> None:
    """Implement `--keep-on-failure`: stay for inspection until the time is up, a signal, or the end of the budget."""
    seconds = keep_on_failure_s(node.plan)
    budget = node.plan.limits.budget_s
    if budget is not None:
        seconds = min(seconds, budget - spent_s)
    if outcome.state != "failed" or seconds <= 0 or node.stop_at is not None:
        return
    until = time.strftime("%H:%M", time.localtime(time.time() + seconds))
    node.console.write_line(
        f"kept after the failure until {until} (process {os.getpid()}); headway down {node.folder.name} removes it"
    )
    sleep(seconds)


_FINAL_STATES = ("finished", "failed", "budget")
_START_TIMEOUT_S = 300.0  # how long to wait at the start for a store that is unreachable
_LAST_WRITE_S = 1.0  # how long to try to write the last event after a second signal

Result = TypeVar("Result")


class Interrupted(HeadwayError):
    """A stop request that arrived before anything was started."""

    exit_code = WORKER_RESTART


@dataclass(frozen=True, kw_only=True, slots=True)
class SupervisorContext:
    """The run folder, plan, topology and environment, all known before the first rank starts."""

    folder: RunFolder
    plan: Plan
    plan_text: bytes
    topology: NodeTopology
    env: Mapping[str, str]
    settings: SupervisorSettings
    loop: Loop
    console: ConsoleWriter


def run(url: str) -> int:
    """Run this node's supervisor to its end; return the exit code. Call with the stop signals blocked."""
    loop = Loop()
    Signals(loop.inbox).install()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, Signals.STOP_SIGNALS)
    try:
        take_over(os.environ)
        return _supervise(url, dict(os.environ), loop)
    except HeadwayError as error:
        print(f"headway: {error}", file=sys.stderr)  # noqa: T201  there may be no log to write it to yet
        return WORKER_RESTART if isinstance(error, Transient) else error.exit_code


def _supervise(url: str, env: Mapping[str, str], loop: Loop) -> int:
    folder = RunFolder(open_store(url))
    text: bytes = _retry_transient(loop, lambda: _plan_text(folder, env.get("HEADWAY_PLAN_FILE")))
    plan = Plan.from_json(text, where=f"{folder.url}/{PLAN}")
    plan = replace(plan, resume=_retry_transient(loop, lambda: _resume_kind(folder, plan)))
    settings = _settings(env, plan.job.get("env", {}))
    topology = detect_topology(env, plan)
    show_ranks = env.get("HEADWAY_ECHO", "0" if "HEADWAY_SPOOL" in env else "1") != "0"
    console = ConsoleWriter(ranks=show_ranks, prefixed=topology.size > 1)
    console.start()
    context = SupervisorContext(
        folder=folder,
        plan=plan,
        plan_text=text,
        topology=topology,
        env=env,
        settings=settings,
        loop=loop,
        console=console,
    )
    try:
        ended = _retry_transient(loop, lambda: _final_end_event(folder))
        if ended is not None:
            return _wait_for_end(context, ended)
        return _run_coordinator(context) if topology.node == 0 else _run_follower(context)
    finally:
        console.close()


def _run_coordinator(context: SupervisorContext) -> int:
    """Run node 0's supervisor: take the lease, then coordinate the run while holding it."""
    loop, folder = context.loop, context.folder
    lease_folder = RunFolder(open_store(folder.url, retry=RetryPolicy(tries=2, total_s=8.0)))
    holder = leases.new_holder()
    lease: Lease = _retry_transient(
        loop,
        lambda: Lease.acquire(
            lease_folder.store,
            holder=holder,
            renew_s=context.settings.renew_s,
            sleep=lambda seconds: _interruptible_sleep(loop, seconds),
            on_wait=lambda record: context.console.write_line(f"waiting for the lease of {record.host} to expire"),
        ),
    )
    heartbeat = None
    try:
        reason = _retry_transient(loop, lambda: stop_reason(folder))
        if reason is not None:
            raise Interrupted(f"{reason}: asked to stop")
        events: list[dict[str, Any]] = _retry_transient(loop, folder.events)
        refusal = _refusal(context, events, _retry_transient(loop, lambda: _submitted_after(folder)))
        node = _make_node(context)
        rendezvous_server = None
        if context.topology.nodes > 1:
            key = rendezvous.rendezvous_key(context.plan_text, folder.name)
            rendezvous_server = rendezvous.RendezvousServer(
                context.topology.rendezvous_port, key, context.topology.nodes, loop.inbox.post
            )
        heartbeat = Heartbeat(lease_folder, lease, loop.inbox, node.health, renew_s=context.settings.renew_s)
        history = restart_policy.read_history(events, lease.record)
        coordinator = Coordinator(
            node,
            heartbeat,
            lease.attempt,
            history,
            rendezvous_server,
            last_attempt=_last_started(events),
            refusal=refusal,
        )
    except HeadwayError as error:
        _end_without_start(folder, lease, error)
        raise
    heartbeat.start()
    _start_threads(node)
    return _supervise_safely(coordinator, node, heartbeat)


def _supervise_safely(coordinator: Coordinator, node: Node, heartbeat: Heartbeat) -> int:
    """Supervise the run. Guarantees: on any error no process of the run is left, and its folder holds the reason."""
    try:
        node.upload_leftover_logs(coordinator.attempt)
        outcome = coordinator.supervise()
    except RunTakenOver as error:
        heartbeat.halt()
        return _end_after_lease_lost(node, error)
    except ForcedStop as error:
        _kill_all_ranks(node)
        outcome = AttemptOutcome(state="stopped", reason=f"{node.stop}: {error.problem.what}", exit_code=WORKER_RESTART)
        node.settings = SupervisorSettings(flush_s=_LAST_WRITE_S)
        node.stop_at = None
    except HeadwayError as error:
        _kill_all_ranks(node)
        outcome = AttemptOutcome(state="failed", reason=str(error), exit_code=error.exit_code)
    except Exception as error:  # noqa: BLE001  ends the run: a bug of ours must not leave ranks behind
        _kill_all_ranks(node)
        node.log(traceback.format_exc())
        outcome = AttemptOutcome(state="failed", reason=f"the supervisor failed: {error!r}", exit_code=FAILED)
    return _conclude(coordinator, node, outcome)


def _conclude(coordinator: Coordinator, node: Node, outcome: AttemptOutcome) -> int:
    try:
        complete = coordinator.conclude(outcome)
    except RunTakenOver as error:
        return _end_after_lease_lost(node, error)
    except ForcedStop:
        complete = False
    if complete:
        send_notification(node, outcome, coordinator.spent_s)
        with suppress(Interrupted):
            keep_after_failure(
                node, outcome, coordinator.spent_s, lambda seconds: _interruptible_sleep(node.loop, seconds)
            )
    node.orphan_reaper.close()
    node.clean_up(complete=complete)
    if not complete and outcome.exit_code == WORKER_DONE:
        node.console.write_line(
            "the end of the run could not be recorded in the run folder: headway resume to complete the record"
        )
        return WORKER_RESTART
    return outcome.exit_code


def _run_follower(context: SupervisorContext) -> int:
    """Run the supervisor of a node other than 0."""
    node = _make_node(context)
    from headway.supervisor.follower import Follower

    follower = Follower(node, rendezvous.rendezvous_key(context.plan_text, context.folder.name))
    _start_threads(node)
    complete = False
    try:
        code, why = follower.serve()
        node.log(why)
        complete = follower.conclude(context.settings.flush_s if node.stop_at is None else 3.0)
        if code not in (WORKER_DONE, WORKER_RESTART):
            outcome = AttemptOutcome(state="failed", reason=why, exit_code=code)
            with suppress(Interrupted):
                keep_after_failure(
                    node, outcome, spent_s(context.folder), lambda seconds: _interruptible_sleep(node.loop, seconds)
                )
    except ForcedStop:
        code = WORKER_RESTART
        _kill_all_ranks(node)
    except HeadwayError as error:
        code = error.exit_code
        node.log(str(error))
        _kill_all_ranks(node)
    node.orphan_reaper.close()
    node.clean_up(complete=complete)
    return code


def _make_node(context: SupervisorContext) -> Node:
    orphan_reaper = OrphanReaper()
    workdirs = make_node_folders(context.env)
    orphan_reaper.send(f"folder {workdirs.work}")
    (workdirs.work / "plan.json").write_bytes(context.plan_text)
    secrets = Secrets()
    if context.plan.job.get("secrets") or context.env.get(NAMES):
        from headway.storage.secrets import resolve

        secrets = resolve_secrets(context.plan, context.env, workdirs.work / "secrets", workdirs.code, resolve)
    return Node(
        folder=context.folder,
        plan=context.plan,
        topology=context.topology,
        base_env=context.env,
        workdirs=workdirs,
        secrets=secrets,
        settings=context.settings,
        loop=context.loop,
        orphan_reaper=orphan_reaper,
        console=context.console,
    )


def _start_threads(node: Node) -> None:
    node.record_writer.start()
    node.mirror_thread.start()


def _kill_all_ranks(node: Node) -> None:
    node.ranks.kill()
    for _ in poll(0.01, within_s=10.0):
        node.ranks.reap()
        if not node.ranks.running:
            break
    node.sweep()


def _end_after_lease_lost(node: Node, error: RunTakenOver) -> int:
    """End at once without writing anything more: another supervisor holds the lease."""
    node.record_writer.halt()
    node.mirror_thread.halt()
    _kill_all_ranks(node)
    node.orphan_reaper.close()
    node.console.write_line(f"ended: {error.problem.what}")
    remove_workdirs(node.workdirs, files=False)
    return FAILED


def _end_without_start(folder: RunFolder, lease: Lease, error: HeadwayError) -> None:
    """Record in the run folder why the run never started. If the store fails here too, the lease goes stale."""
    state = "stopped" if error.exit_code == WORKER_RESTART else "failed"
    reason = str(error)
    try:
        events = SegmentWriter(folder.store, "events", lease.attempt)
        for record in (
            {"kind": "attempt", "number": lease.attempt, "why": "did not start"},
            {"kind": "ended", "state": state, "reason": reason, "exit_code": error.exit_code},
        ):
            events.add(_json({**record, "time": utc_now()}))
        events.flush()
        lease.release()
    except StoreError as failure:
        print(f"headway: {failure}", file=sys.stderr)  # noqa: T201  the run folder cannot be written


def _refusal(context: SupervisorContext, events: list[dict[str, Any]], submitted_after: int) -> str:
    """Return why the ranks must not be started, or "".

    Refuse where the platform restarted us by itself and the script would repeat work that was already paid for. A
    start that a user submitted is never refused.
    """
    why = restart_policy.costly_restart(context.plan, context.folder.name)
    trained = _last_started(events)
    if not why or trained <= submitted_after:
        return ""
    return f"the machine of attempt {trained} was preempted or restarted: {why}"


def _last_started(events: list[dict[str, Any]]) -> int:
    """Return the newest attempt whose ranks were started, or 0. Older versions recorded only that ranks exited."""
    kinds = ("started", "rank_exit")
    return max((event["attempt"] for event in events if event["kind"] in kinds), default=0)


def _submitted_after(folder: RunFolder) -> int:
    """Return the newest attempt at the time of the last submission."""
    intent = folder.read_json(SUBMISSION) or {}
    submissions = [entry for entry in intent.get("attempts", []) if not entry.get("failed")]
    return int(submissions[-1].get("after", 0)) if submissions else 0


def _final_end_event(folder: RunFolder) -> dict[str, Any] | None:
    """Return the `ended` event if the run has ended since it was last submitted, else None.

    If there is one, the platform has restarted a worker that was done.
    """
    ended = folder.ended()
    if ended is None or ended.get("state") not in _FINAL_STATES:
        return None
    intent = folder.read_json(SUBMISSION) or {}
    submissions = [entry for entry in intent.get("attempts", []) if not entry.get("failed")]
    if not submissions:
        return ended if ended["state"] == "finished" else None
    return ended if ended["attempt"] > int(submissions[-1].get("after", 0)) else None


def _wait_for_end(context: SupervisorContext, ended: Mapping[str, Any]) -> int:
    """Exit with the code of a run that has ended already.

    With HEADWAY_AFTER_END=idle, sleep instead until a signal arrives: a StatefulSet restarts a container that exits.
    """
    context.console.write_line(f"this run has already ended: {ended['state']}: {ended.get('reason', '')}")
    if context.env.get("HEADWAY_AFTER_END") == "idle":
        try:
            while True:
                _interruptible_sleep(context.loop, 3600.0)
        except Interrupted:
            pass
    return int(ended.get("exit_code", WORKER_DONE))


def _plan_text(folder: RunFolder, plan_file: str | None) -> bytes:
    """Return the text of the run's plan, or of `plan_file`, where a target has changed the path of the data."""
    if plan_file:
        return Path(plan_file).read_bytes()
    folder.plan()  # raises if the plan is invalid
    return folder.store.read(PLAN)


def _resume_kind(folder: RunFolder, plan: Plan) -> str:
    """Return how the run resumes: by its plan or, if that is older than the key, by the code beside its folder."""
    if plan.resumes:
        return plan.resumes
    from headway.packaging.resume_evidence import kind_in  # only for scripts of older plans

    try:
        archive = open_store(join(folder.url.rpartition("/")[0], "code")).read(f"{plan.code.sha256}.tar.gz")
    except NotThere:
        return UNKNOWN
    return kind_in(plan, archive)


def _retry_transient(loop: Loop, work: Callable[[], Result]) -> Result:
    """Retry with exponential back-off while the store is unreachable at the start; a stop signal interrupts."""
    reported = False

    def attempt() -> Result:
        _interruptible_sleep(loop, 0.0)
        return work()

    def report(error: Exception) -> None:
        nonlocal reported
        if not reported:
            reported = True
            print(f"headway: the store does not respond, retrying: {error}", file=sys.stderr)  # noqa: T201  ditto

    policy = RetryPolicy(tries=NO_LIMIT, total_s=_START_TIMEOUT_S, first_pause_s=1.0, longest_pause_s=30.0)
    return retry(attempt, policy, on_failure=report, sleep=lambda seconds: _interruptible_sleep(loop, seconds))


def _interruptible_sleep(loop: Loop, seconds: float) -> None:
    """Sleep; raise Interrupted on a stop signal. Nothing has been started yet that would need a graceful end."""
    end = time.monotonic() + seconds
    while True:
        for message in loop.run_once(end - time.monotonic()):
            if isinstance(message, StopRequested | StopNow):
                raise Interrupted("asked to stop before the ranks were started")
        if time.monotonic() >= end:
            return


def _settings(env: Mapping[str, str], job_env: Mapping[str, str]) -> SupervisorSettings:
    """Return the settings of HEADWAY_TIMING in the job's `env` and in our environment, which takes precedence."""
    fields = {
        "renew": "renew_s",
        "restart_pause": "first_pause_s",
        "mirror": "mirror_s",
        "peers": "peers_s",
        "release": "release_s",
        "flush": "flush_s",
        "halt": "halt_s",
        "stall": "stall_s",
        "same_step_crashes": "max_same_step_crashes",
    }
    named = {**timing(job_env), **timing(env)}
    chosen: dict[str, Any] = {fields[name]: value for name, value in named.items() if name in fields}
    return SupervisorSettings(**chosen)


def _json(record: Mapping[str, Any]) -> str:
    import json

    return json.dumps(record, ensure_ascii=False)
