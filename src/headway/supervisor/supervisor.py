"""Run a supervisor from start to exit: read the plan, take the lease (node 0) or join node 0, run the ranks, clean up.

Also the steps after the last event: the webhook notification and `--keep-on-failure`.
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
    WORKER_AGAIN,
    WORKER_DONE,
    HeadwayError,
    NotThere,
    StoreError,
    Transient,
)
from headway.core.plan import UNKNOWN, WEBHOOK, Plan
from headway.core.platform import timing
from headway.core.retry import RetryPolicy
from headway.rundir import lease as leases
from headway.rundir.layout import INTENT, PLAN, RunFolder, SegmentWriter
from headway.rundir.lease import Lease, spent_s, spent_usd
from headway.rundir.teardown import keep_s
from headway.storage import join, open_store
from headway.supervisor import rendezvous, restart_policy
from headway.supervisor.coordinator import Leader
from headway.supervisor.event_loop import Loop, Signals, StopAsked, StopNow
from headway.supervisor.log_pipeline import StdoutPump
from headway.supervisor.node import ForcedStop, Node, RunTakenOver, Settings
from headway.supervisor.processes import OrphanReaper
from headway.supervisor.rank_env import NAMES, Secrets, make_places, remove_places, resolve_secrets, take_over
from headway.supervisor.restart_policy import Outcome
from headway.supervisor.threads import Heartbeat, now_text, stop_reason
from headway.supervisor.topology import NodeTopology, node_world

# After the last event


def tell(node: Node, outcome: Outcome, spent_s: float) -> None:
    """Post to the webhook, if one is configured, unless the run was stopped: then someone waits for us to exit."""
    url = node.secrets.variables.get(WEBHOOK)
    if not url or outcome.state == "stopped" or node.stop_at is not None:
        return
    from headway.rundir.notify import Notification, post

    usd = spent_usd(node.plan, spent_s)
    post(url, Notification.of(node.folder, node.plan, outcome.state, outcome.reason, spent_s, usd), node.echo.say)


def stay(node: Node, outcome: Outcome, spent_s: float, nap: Callable[[float], None]) -> None:
    """Implement `--keep-on-failure`: stay for inspection until the time is up, a signal, or the end of the budget."""
    seconds = keep_s(node.plan)
    budget = node.plan.limits.budget_s
    if budget is not None:
        seconds = min(seconds, budget - spent_s)
    if outcome.state != "failed" or seconds <= 0 or node.stop_at is not None:
        return
    until = time.strftime("%H:%M", time.localtime(time.time() + seconds))
    node.echo.say(
        f"kept after the failure until {until} (process {os.getpid()}); headway down {node.folder.name} removes it"
    )
    nap(seconds)


_ENDED_FOR_GOOD = ("finished", "failed", "budget")
_START_PATIENCE_S = 300.0  # how long to wait at the start for a store that is unreachable
_LAST_CHANCE_S = 1.0  # how long to try to write the last event after a second signal

Result = TypeVar("Result")


class Interrupted(HeadwayError):
    """A stop request that arrived before anything was started."""

    exit_code = WORKER_AGAIN


@dataclass(frozen=True, kw_only=True, slots=True)
class SupervisorContext:
    """The run folder, plan, topology and environment, all known before the first rank starts."""

    folder: RunFolder
    plan: Plan
    plan_text: bytes
    world: NodeTopology
    env: Mapping[str, str]
    settings: Settings
    loop: Loop
    echo: StdoutPump


def run(url: str) -> int:
    """Run this node's supervisor to its end; return the exit code. Call with the stop signals blocked."""
    loop = Loop()
    Signals(loop.inbox).install()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, Signals.STOP)
    try:
        take_over(os.environ)
        return _supervise(url, dict(os.environ), loop)
    except HeadwayError as error:
        print(f"headway: {error}", file=sys.stderr)  # noqa: T201  there may be no log to write it to yet
        return WORKER_AGAIN if isinstance(error, Transient) else error.exit_code


def _supervise(url: str, env: Mapping[str, str], loop: Loop) -> int:
    settings = _settings(env)
    folder = RunFolder(open_store(url))
    text: bytes = _patiently(loop, lambda: _plan_text(folder, env.get("HEADWAY_PLAN_FILE")))
    plan = Plan.from_json(text, where=f"{folder.url}/{PLAN}")
    plan = replace(plan, resume=_patiently(loop, lambda: _resume_kind(folder, plan)))
    world = node_world(env, plan)
    shown = env.get("HEADWAY_ECHO", "0" if "HEADWAY_SPOOL" in env else "1") != "0"
    echo = StdoutPump(ranks=shown, prefixed=world.size > 1)
    echo.start()
    start = SupervisorContext(
        folder=folder, plan=plan, plan_text=text, world=world, env=env, settings=settings, loop=loop, echo=echo
    )
    try:
        ended = _patiently(loop, lambda: _ended_for_good(folder))
        if ended is not None:
            return _wait_for_end(start, ended)
        return _lead(start) if world.node == 0 else _serve(start)
    finally:
        echo.close()


def _lead(start: SupervisorContext) -> int:
    """Run node 0's supervisor: take the lease, then coordinate the run while holding it."""
    loop, folder = start.loop, start.folder
    beating = RunFolder(open_store(folder.url, patience=RetryPolicy(tries=2, total_s=8.0)))
    holder = leases.new_holder()
    lease: Lease = _patiently(
        loop,
        lambda: Lease.take(
            beating.store,
            holder=holder,
            renew_s=start.settings.renew_s,
            sleep=lambda seconds: _nap(loop, seconds),
            on_wait=lambda record: start.echo.say(f"waiting for the lease of {record.host} to expire"),
        ),
    )
    heartbeat = None
    try:
        reason = _patiently(loop, lambda: stop_reason(folder))
        if reason is not None:
            raise Interrupted(f"{reason}: asked to stop")
        events: list[dict[str, Any]] = _patiently(loop, folder.events)
        refusal = _refusal(start, events, _patiently(loop, lambda: _submitted_after(folder)))
        node = _node(start)
        gathering = None
        if start.world.nodes > 1:
            key = rendezvous.key_for(start.plan_text, folder.name)
            gathering = rendezvous.RendezvousServer(start.world.meeting_port, key, start.world.nodes, loop.inbox.post)
        heartbeat = Heartbeat(beating, lease, loop.inbox, node.health, renew_s=start.settings.renew_s)
        past = restart_policy.past(events, lease.record)
        leader = Leader(node, heartbeat, lease.attempt, past, gathering, former=_last_started(events), refusal=refusal)
    except HeadwayError as error:
        _end_without_start(folder, lease, error)
        raise
    heartbeat.start()
    _run_duties(node)
    return _guarded(leader, node, heartbeat)


def _guarded(leader: Leader, node: Node, heartbeat: Heartbeat) -> int:
    """Supervise the run. Guarantees: on any error no process of the run is left, and its folder holds the reason."""
    try:
        node.rescue_logs(leader.attempt)
        outcome = leader.supervise()
    except RunTakenOver as error:
        heartbeat.halt()
        return _fenced(node, error)
    except ForcedStop as error:
        _end_everything(node)
        outcome = Outcome(state="stopped", reason=f"{node.stop}: {error.problem.what}", exit_code=WORKER_AGAIN)
        node.settings = Settings(flush_s=_LAST_CHANCE_S)
        node.stop_at = None
    except HeadwayError as error:
        _end_everything(node)
        outcome = Outcome(state="failed", reason=str(error), exit_code=error.exit_code)
    except Exception as error:  # noqa: BLE001  ends the run: a bug of ours must not leave ranks behind
        _end_everything(node)
        node.say(traceback.format_exc())
        outcome = Outcome(state="failed", reason=f"the supervisor failed: {error!r}", exit_code=FAILED)
    return _concluded(leader, node, outcome)


def _concluded(leader: Leader, node: Node, outcome: Outcome) -> int:
    try:
        complete = leader.conclude(outcome)
    except RunTakenOver as error:
        return _fenced(node, error)
    except ForcedStop:
        complete = False
    if complete:
        tell(node, outcome, leader.spent_s)
        with suppress(Interrupted):
            stay(node, outcome, leader.spent_s, lambda seconds: _nap(node.loop, seconds))
    node.undertaker.dismiss()
    node.leave(complete=complete)
    if not complete and outcome.exit_code == WORKER_DONE:
        node.echo.say(
            "the end of the run could not be recorded in the run folder: headway resume to complete the record"
        )
        return WORKER_AGAIN
    return outcome.exit_code


def _serve(start: SupervisorContext) -> int:
    """Run the supervisor of a node other than 0."""
    node = _node(start)
    from headway.supervisor.follower import Follower

    member = Follower(node, rendezvous.key_for(start.plan_text, start.folder.name))
    _run_duties(node)
    complete = False
    try:
        code, why = member.serve()
        node.say(why)
        complete = member.conclude(start.settings.flush_s if node.stop_at is None else 3.0)
        if code not in (WORKER_DONE, WORKER_AGAIN):
            outcome = Outcome(state="failed", reason=why, exit_code=code)
            with suppress(Interrupted):
                stay(node, outcome, spent_s(start.folder), lambda seconds: _nap(node.loop, seconds))
    except ForcedStop:
        code = WORKER_AGAIN
        _end_everything(node)
    except HeadwayError as error:
        code = error.exit_code
        node.say(str(error))
        _end_everything(node)
    node.undertaker.dismiss()
    node.leave(complete=complete)
    return code


def _node(start: SupervisorContext) -> Node:
    undertaker = OrphanReaper()
    places = make_places(start.env)
    undertaker.tell(f"folder {places.work}")
    (places.work / "plan.json").write_bytes(start.plan_text)
    secrets = Secrets()
    if start.plan.job.get("secrets") or start.env.get(NAMES):
        from headway.storage.secrets import resolve

        secrets = resolve_secrets(start.plan, start.env, places.work / "secrets", resolve)
    return Node(
        folder=start.folder,
        plan=start.plan,
        world=start.world,
        base=start.env,
        places=places,
        secrets=secrets,
        settings=start.settings,
        loop=start.loop,
        undertaker=undertaker,
        echo=start.echo,
    )


def _run_duties(node: Node) -> None:
    node.scribe.start()
    node.mirroring.start()


def _end_everything(node: Node) -> None:
    node.ranks.kill()
    give_up = time.monotonic() + 10.0
    while node.ranks.running and time.monotonic() < give_up:
        node.ranks.ends()
        time.sleep(0.01)
    node.sweep()


def _fenced(node: Node, error: RunTakenOver) -> int:
    """End at once without writing anything more: another supervisor holds the lease."""
    node.scribe.halt()
    node.mirroring.halt()
    _end_everything(node)
    node.undertaker.dismiss()
    node.echo.say(f"ended: {error.problem.what}")
    remove_places(node.places, files=False)
    return FAILED


def _end_without_start(folder: RunFolder, lease: Lease, error: HeadwayError) -> None:
    """Record in the run folder why the run never started. If the store fails here too, the lease goes stale."""
    state = "stopped" if error.exit_code == WORKER_AGAIN else "failed"
    reason = str(error)
    try:
        events = SegmentWriter(folder.store, "events", lease.attempt)
        for record in (
            {"kind": "attempt", "number": lease.attempt, "why": "did not start"},
            {"kind": "ended", "state": state, "reason": reason, "exit_code": error.exit_code},
        ):
            events.add(_json({**record, "time": now_text()}))
        events.flush()
        lease.release()
    except StoreError as failure:
        print(f"headway: {failure}", file=sys.stderr)  # noqa: T201  the run folder cannot be written


def _refusal(start: SupervisorContext, events: list[dict[str, Any]], submitted_after: int) -> str:
    """Return why the ranks must not be started, or "".

    Refuse where the platform restarted us by itself and the script would repeat work that was already paid for. A
    start that a user submitted is never refused.
    """
    why = restart_policy.costly_restart(start.plan, start.folder.name)
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
    intent = folder.read_json(INTENT) or {}
    submissions = [entry for entry in intent.get("attempts", []) if not entry.get("failed")]
    return int(submissions[-1].get("after", 0)) if submissions else 0


def _ended_for_good(folder: RunFolder) -> dict[str, Any] | None:
    """Return the `ended` event if the run has ended since it was last submitted, else None.

    If there is one, the platform has restarted a worker that was done.
    """
    ended = folder.ended()
    if ended is None or ended.get("state") not in _ENDED_FOR_GOOD:
        return None
    intent = folder.read_json(INTENT) or {}
    submissions = [entry for entry in intent.get("attempts", []) if not entry.get("failed")]
    if not submissions:
        return ended if ended["state"] == "finished" else None
    return ended if ended["attempt"] > int(submissions[-1].get("after", 0)) else None


def _wait_for_end(start: SupervisorContext, ended: Mapping[str, Any]) -> int:
    """Exit with the code of a run that has ended already.

    With HEADWAY_AFTER_END=idle, sleep instead until a signal arrives: a StatefulSet restarts a container that exits.
    """
    start.echo.say(f"this run has already ended: {ended['state']}: {ended.get('reason', '')}")
    if start.env.get("HEADWAY_AFTER_END") == "idle":
        try:
            while True:
                _nap(start.loop, 3600.0)
        except Interrupted:
            pass
    return int(ended.get("exit_code", WORKER_DONE))


def _plan_text(folder: RunFolder, brought: str | None) -> bytes:
    """Return the text of the run's plan, or of the file `brought`, where a target has changed the path of the data."""
    if brought:
        return Path(brought).read_bytes()
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


def _patiently(loop: Loop, work: Callable[[], Result]) -> Result:
    """Retry with exponential back-off while the store is unreachable at the start; a stop signal interrupts."""
    give_up, pause = time.monotonic() + _START_PATIENCE_S, 1.0
    while True:
        _nap(loop, 0.0)
        try:
            return work()
        except Transient as error:
            if time.monotonic() + pause > give_up:
                raise
            if pause == 1.0:
                print(f"headway: the store does not respond, retrying: {error}", file=sys.stderr)  # noqa: T201  ditto
        _nap(loop, pause)
        pause = min(30.0, pause * 2)


def _nap(loop: Loop, seconds: float) -> None:
    """Sleep; raise Interrupted on a stop signal. Nothing has been started yet that would need a graceful end."""
    end = time.monotonic() + seconds
    while True:
        for message in loop.turn(end - time.monotonic()):
            if isinstance(message, StopAsked | StopNow):
                raise Interrupted("asked to stop before the ranks were started")
        if time.monotonic() >= end:
            return


def _settings(env: Mapping[str, str]) -> Settings:
    fields = {
        "renew": "renew_s",
        "restart_pause": "first_pause_s",
        "mirror": "mirror_s",
        "peers": "peers_s",
        "flush": "flush_s",
        "halt": "halt_s",
        "same_step_crashes": "same_place",
    }
    chosen: dict[str, Any] = {fields[name]: value for name, value in timing(env).items() if name in fields}
    return Settings(**chosen)


def _json(record: Mapping[str, Any]) -> str:
    import json

    return json.dumps(record, ensure_ascii=False)
