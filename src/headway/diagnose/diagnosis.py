"""Diagnose why a run ended, from its folder and, if its target offers any, the target's evidence. Read-only."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from headway.core.errors import HeadwayError
from headway.core.plan import describe_next_start
from headway.core.python_errors import last_error
from headway.core.types import State, Status
from headway.diagnose.matching import HERE, FailureRule, last_lines, match_rules, user_rules
from headway.packaging.resume_evidence import kind_of
from headway.plugins import plugin_of
from headway.rundir.layout import SUPERVISOR
from headway.rundir.source_paths import SourcePaths

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.launcher.lifecycle import RunHandle
    from headway.rundir.layout import RunFolder


_TRACEBACK = "Traceback (most recent call last):"
TAIL_LINES, NEAR_END_LINES = 400, 60  # lines of a rank's log, from its end
SHOWN_LINES = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """Diagnosis of a run. Without a `name` the failure is unknown, and `lines` are the best evidence."""

    run: str
    state: str
    name: str = ""
    cause: str = ""
    evidence: str = ""
    fix: str = ""
    rank: int | None = None  # the first that failed
    lines: tuple[str, ...] = ()  # the last lines of its log
    error: str = ""  # the Python exception that ended it
    at: str = ""  # the innermost line of the project in its traceback: train.py:6
    in_code: bool = False  # the remedy is to edit that line
    retry: str = ""  # the class of the failure: retry, retry smaller, wait and retry, retry once, do not retry
    decided: str = ""  # what the supervisor made of it, and why


def diagnose_run(run: RunHandle, status: Status, *, rank: int | None = None) -> Diagnosis:
    """Return the cause, if a rule matches.

    Otherwise return the last lines of the first rank that failed, and of no other.
    """
    folder = run.folder
    if status.state is State.RUNNING:
        return _diagnose_live(run, status)
    if status.state is State.FINISHED:
        return Diagnosis(run=run.run, state=status.state.value)
    if status.state is State.PENDING:  # it may be waiting for something that never comes
        return _diagnosis(run, status, [*_target_messages(run), status.reason], None, ())
    events = _read_events(folder)
    stall = _stall_that_ended(events)
    if stall is not None and rank is None:
        return _diagnose_ended_stall(run, status, stall, _last_decision(events))
    first = _first_failed_rank(events) if rank is None else rank
    lines = _rank_output(folder, events, first)
    target_says, supervisor_says = _target_messages(run), [*_end_messages(events), status.reason]
    # The last lines are closest to the cause; earlier warnings are searched only if those match no rule. If a rank
    # failed, its own output comes before the target's evidence, which may be about the start long before.
    paths = SourcePaths.of(folder, events)
    lines = [paths.translate(line) for line in lines]
    near = [*lines[-NEAR_END_LINES:], *supervisor_says, *(target_says if first is None else ())]
    far = [*_supervisor_log(folder), *lines, *target_says, *supervisor_says]
    found = _diagnosis(run, status, near, first, tuple(_relevant_lines(lines)), more_evidence=far)
    found = replace(found, decided=_last_decision(events))
    error = last_error(lines[-NEAR_END_LINES:])
    if error is None:
        return found
    frame = error.own_frame(paths.project)
    at = f"{frame.file}:{frame.line}" if frame else ""
    return replace(found, error=error.kind, at=at, in_code=found.in_code or not found.name)


def _diagnose_live(run: RunHandle, status: Status) -> Diagnosis:
    """Explain why a running run does not advance, if its supervisor says so."""
    found = Diagnosis(run=run.run, state=status.state.value)
    try:
        condition = (run.folder.progress() or {}).get("condition")
    except HeadwayError:
        condition = None
    if not isinstance(condition, dict):
        return found
    if condition.get("kind") != "stalled":
        return _diagnose_waiting(found, run, status, condition)
    stalls = [event for event in _read_events(run.folder) if event.get("kind") == "stall"]
    return _of_stall(found, stalls[-1] if stalls else {}, str(condition.get("text", "")), run)


def _diagnose_waiting(found: Diagnosis, run: RunHandle, status: Status, condition: Mapping[str, Any]) -> Diagnosis:
    """Explain why nodes are missing, by what the target says of them."""
    match = match_rules([*_target_messages(run), status.reason], run_facts(run), first=_own_rules(run))
    cause, fix = str(condition.get("text", "")), str(condition.get("fix", ""))
    if match is None:
        return replace(found, name="waiting", cause=cause, fix=fix)
    return replace(
        found, name="waiting", cause=f"{cause}: {match.cause}", evidence=match.evidence, fix=f"{match.fix}; {fix}"
    )


def _of_stall(found: Diagnosis, event: Mapping[str, Any], text: str, run: RunHandle) -> Diagnosis:
    then = str(event.get("then") or "")
    follows = {"restart": "it is restarted if this goes on", "stop": "it is ended if this goes on"}.get(then, "")
    return replace(
        found,
        name="stalled",
        cause=str(event.get("what") or text),
        evidence=str(event.get("where") or ""),
        at=str(event.get("at") or ""),
        rank=event.get("rank"),
        fix=f"all stacks: {event.get('stacks')} in the run folder (headway pull {run.run}); "
        f"headway stop {run.run} ends it, with its last checkpoint"
        if event
        else f"headway stop {run.run}",
        decided=follows,
    )


def _diagnose_ended_stall(run: RunHandle, status: Status, stall: Mapping[str, Any], decided: str) -> Diagnosis:
    found = _of_stall(Diagnosis(run=run.run, state=status.state.value), stall, "", run)
    fix = f"edit {found.at}" if found.at else f"headway logs {run.run}"
    fix = f"{fix}; all stacks: {stall.get('stacks')} in the run folder"
    return replace(found, fix=fix, decided=decided, in_code=bool(found.at))


def _relevant_lines(lines: list[str]) -> list[str]:
    """Return the last lines, from the beginning of the last traceback if they contain it."""
    shown = last_lines(lines, SHOWN_LINES)
    start = max((at for at, line in enumerate(shown) if _TRACEBACK in line), default=0)
    return shown[start:]


def _diagnosis(
    run: RunHandle,
    status: Status,
    evidence: list[str],
    rank: int | None,
    tail: tuple[str, ...],
    more_evidence: list[str] | None = None,
) -> Diagnosis:
    known_facts, own = run_facts(run), _own_rules(run)
    match = match_rules(evidence, known_facts, first=own) or match_rules(more_evidence or [], known_facts, first=own)
    fields: dict[str, Any] = {}
    if match is not None:
        fields = {"name": match.name, "cause": match.cause, "evidence": match.evidence, "in_code": match.in_code}
        fields["retry"] = match.retry.value
    return Diagnosis(
        run=run.run,
        state=status.state.value,
        rank=rank,
        lines=tail,
        fix="" if match is None else match.fix,
        **fields,
    )


def _own_rules(run: RunHandle) -> tuple[FailureRule, ...]:
    try:
        return user_rules(run.folder.plan().job)
    except HeadwayError:  # damaged: the rules of the table remain
        return ()


def _stall_that_ended(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the stall because of which the last attempt was ended, if one was."""
    exits = [event for event in events if event.get("kind") == "rank_exit" and event.get("first")]
    if not exits or not exits[-1].get("stalled"):
        return None
    return next((event for event in reversed(events) if event.get("kind") == "stall"), None)


def _last_decision(events: list[dict[str, Any]]) -> str:
    """Return what the supervisor decided about the last failure, and its reason; "" if it recorded nothing."""
    found = [event for event in events if event.get("kind") == "fault"]
    return f"{found[-1].get('decision')} ({found[-1].get('reason')})" if found else ""


def diagnose_log(lines: Sequence[str], name: str, rules: Sequence[FailureRule] = ()) -> Diagnosis:
    """Return the cause that a log of any program shows. The last lines count more than those before.

    Args:
        lines: The log.
        name: The file's name, for messages.
        rules: Rules of a job file, tried before the others.
    """
    facts = {HERE: _this_python()}
    lines = list(lines)
    near = lines[-NEAR_END_LINES:]
    match = match_rules(near, facts, first=rules) or match_rules(lines, facts, first=rules)
    error = last_error(near)
    frame = error.own_frame(os.getcwd()) or (error.frames[-1] if error.frames else None) if error else None
    found = Diagnosis(
        run=name,
        state="failed",
        lines=tuple(_relevant_lines(near)),
        error=error.kind if error else "",
        at=f"{frame.file}:{frame.line}" if frame else "",
        in_code=error is not None and match is None,
    )
    if match is None:
        return found
    return replace(found, name=match.name, cause=match.cause, evidence=match.evidence, fix=match.fix,
                   in_code=match.in_code, retry=match.retry.value)  # fmt: skip


def run_facts(run: RunHandle) -> dict[str, str]:
    """Return facts about the run, to fill into suggested commands."""
    result = {"run": run.run, "target": run.target_handle.target}
    try:
        return result | _plan_facts(run.folder.plan())
    except HeadwayError:  # damaged: the commands keep their placeholders in capitals
        return result


def _plan_facts(plan: Plan) -> dict[str, str]:
    options: Mapping[str, Any] = plan.options
    named = ("project", "region", "namespace", "service_account", "cluster", "location")
    result = {key: str(options[key]) for key in named if options.get(key)}
    result["again"] = describe_next_start(kind_of(plan))
    if plugin_of(plan.kind).own_python:
        result[HERE] = str(plan.job.get("python") or plan.options.get("python") or _this_python())
    outputs = str(plan.job.get("outputs", ""))
    if "://" in outputs:
        result["bucket"] = outputs.partition("://")[2].partition("/")[0]
    accelerator = (plan.job.get("resources") or {}).get("accelerator")
    if accelerator:
        result["accelerator"] = accelerator if isinstance(accelerator, str) else str(accelerator["kind"])
    repository = (plan.job.get("image") or {}).get("repository") or ""
    if repository.count("/") >= 2:
        result["repository"] = repository.split("/")[2]
    return result


def _this_python() -> str:
    """Return how a user calls this interpreter, which trains by default on this machine."""
    named = shutil.which("python")
    return "python" if named and os.path.samefile(named, sys.executable) else sys.executable


def _read_events(folder: RunFolder) -> list[dict[str, Any]]:
    try:
        return folder.events()
    except (HeadwayError, ValueError):  # a damaged segment must not hide the other evidence
        return []


def _first_failed_rank(events: list[dict[str, Any]]) -> int | None:
    """Return the first rank that failed in the newest attempt: the one marked first, or else the first recorded."""
    exits = [event for event in events if event.get("kind") == "rank_exit"]
    newest = max((event["attempt"] for event in exits), default=0)
    mine = [event for event in exits if event["attempt"] == newest]
    chosen = next((event for event in mine if event.get("first")), mine[0] if mine else None)
    return None if chosen is None else int(chosen.get("rank", 0))


def _rank_output(folder: RunFolder, events: list[dict[str, Any]], rank: int | None) -> list[str]:
    """Return the last lines of the rank's log, or else the lines that the supervisor recorded when the rank exited."""
    if rank is None:
        return []
    recorded = [
        list(map(str, event.get("lines") or ()))
        for event in events
        if event.get("kind") == "rank_exit" and event.get("rank") == rank
    ]
    try:
        logged = [line.text for line in folder.log_lines(rank)]
    except HeadwayError:
        logged = []
    return list(islice(logged, max(0, len(logged) - TAIL_LINES), None)) or (recorded[-1] if recorded else [])


def _end_messages(events: list[dict[str, Any]]) -> list[str]:
    """Return the supervisor's account of the end, oldest first. It is searched after the rank's own output."""
    kinds = ("ended", "rank_exit", "failed", "logger_failed")
    relevant = [event for event in events if event.get("kind") in kinds and not event.get("killed_by")]
    reasons = [str(event.get("reason") or event.get("error") or "") for event in relevant]
    killed = [f"rank {event.get('rank')} ended by {event['signal']}" for event in relevant if event.get("signal")]
    codes = [f"rank {event.get('rank')} exited with {event['code']}" for event in relevant if event.get("code") == 137]
    return [*killed, *codes, *filter(None, reasons)]


def _supervisor_log(folder: RunFolder) -> list[str]:
    try:
        return [line.text for line in folder.log_lines(SUPERVISOR)][-TAIL_LINES:]
    except HeadwayError:
        return []


def _target_messages(run: RunHandle) -> list[str]:
    """Return the target's own evidence: pod events, a job's error."""
    try:
        return run.target.evidence(run.target_handle)
    except HeadwayError:  # gone or unreachable, as the status says: not the cause of the run's end
        return []
