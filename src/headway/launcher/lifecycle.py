"""The lifecycle of a run: launch, follow, stop, resume, take down. Every step is recorded before it is made.

Guarantees: whenever the launcher is killed, either nothing is left, or a run that can be found and taken down.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway import targets
from headway.core import errors
from headway.core.errors import BadInput, BadJob, Conflict, HeadwayError, RunBusy, StoreError, TargetError
from headway.core.plan import BEGINNING, EXACT, Plan, describe_next_start
from headway.core.platform import ignored_timing
from headway.core.retry import poll
from headway.core.types import ORIGIN, Handle, LogLine, Receipt, State, Status, Target
from headway.packaging.upload import list_code, resume_recorded, send_code, verify_plan
from headway.pricing.estimate import record_run
from headway.rundir import lease, submission, teardown
from headway.rundir.index import RunIndex, RunRow, candidate_names, checked_name
from headway.rundir.layout import CODE_LISTING, PLAN, RECEIPT, STOP, SUBMISSION, RunFolder
from headway.rundir.lease import spent_s, spent_usd
from headway.rundir.status import (
    TAKEN_DOWN,
    StatusPoller,
    newest_attempt,
    read_status_inputs,
    was_taken_down_before_start,
)
from headway.storage import ABSENT, is_same_folder, join, local_path, open_store, require_conditional_put

if TYPE_CHECKING:
    from headway.launcher.migrate import Migration

# End-of-run hooks, run once by the first client that sees the end


def on_run_end(folder: RunFolder, log: Callable[[str], None]) -> None:
    """Record the run for time estimates and send notifications. Never fails: errors are passed to `log`."""
    try:
        seconds = spent_s(folder)
        plan, end = folder.plan(), read_status_inputs(folder).end
        status = end or Status(state=State.LOST, reason="it ended without reporting why")
        if status.state is State.FINISHED:
            record_run(folder, seconds)
        notify_options = plan.job.get("notify") or {}
        if not any(notify_options.values()):
            return
        from headway.rundir.notify import Notification, notify_from_client

        notification = Notification.for_run(
            folder, plan, status.state.value, status.reason, seconds, spent_usd(plan, seconds)
        )
        notify_from_client(notify_options, notification, lost=end is None, log=log)
    except HeadwayError as error:
        log(f"could not record or announce the end of the run: {error}")


LineCallback = Callable[[LogLine], None]
Log = Callable[[str], None]
EXIT_CODES = {
    State.PENDING: errors.FINISHED,  # detached: everything requested has been done
    State.RUNNING: errors.FINISHED,
    State.FINISHED: errors.FINISHED,
    State.FAILED: errors.FAILED,
    State.BUDGET: errors.BUDGET_ENDED,
    State.STOPPED: errors.RESUMABLE,
    State.LOST: errors.RESUMABLE,
    State.UNKNOWN: errors.FAILED,  # the question could not be answered
}


def _no_log(text: str) -> None:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A run's status, and the receipt for what it created on its target.

    Attributes:
        run: The run's name.
        status: Its status.
        receipt: What was removed; None if it was not taken down from here.
    """

    run: str
    status: Status
    receipt: Receipt | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of `headway`."""
        return errors.LEFT_BEHIND if self.receipt and self.receipt.left else EXIT_CODES[self.status.state]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHandle:
    """A handle on one run, with everything that can be done with it: from `headway.run` and `headway.launch`.

    Attributes:
        run: The run's name.
        url: URL of the run folder.
        target_handle: How the target finds the run.
        target: The target.
        run_index: The index that records its state.
        say: Called with messages for the user.

    Example:
        >>> import headway
        >>> run = headway.run("headway.yaml", name="first")
        >>> run.wait().exit_code
        0
        >>> run.status().state.value, run.metrics()
        ('finished', [])
        >>> sorted(path.name for path in run.pull("copy").iterdir() if path.suffix == ".json")
        ['code.json', 'intent.json', 'lease.json', 'plan.json', 'teardown.json']
    """

    run: str
    url: str
    target_handle: Handle
    target: Target = field(repr=False)
    run_index: RunIndex = field(repr=False)
    say: Log = field(default=_no_log, repr=False)

    @property
    def folder(self) -> RunFolder:
        """The run folder."""
        return RunFolder(open_store(self.url))

    def status(self) -> Status:
        """Return the current status. The first to see the end takes the run down.

        Returns:
            The status.
        """
        return self.outcome().status

    def metrics(self) -> Any:
        """Return the logged metrics, one row per step.

        Returns:
            A `pandas.DataFrame` if pandas is installed, else a list of dictionaries.
        """
        rows = self.folder.metrics()
        if find_spec("pandas") is None:
            return rows
        return import_module("pandas").DataFrame(rows)

    def pull(self, to: str | Path | None = None, *, only: Sequence[str] = ()) -> Path:
        """Copy the run's folder, or part of it, to this machine.

        Args:
            to: The folder to copy to. None: one of the run's name.
            only: Parts to copy, such as `export` or `metrics`. Empty: everything.

        Returns:
            The folder.

        Raises:
            UnknownRun: If there is nothing to copy.
        """
        from headway.launcher.pull import copy_run, destination

        return copy_run(self.url, destination(self.url, to), only=only, report=lambda done, of: None).to

    def resume(self, *, budget_hours: float | None = None, budget_usd: float | None = None) -> RunHandle:
        """Resume the run from its last checkpoint, as a new attempt. A finished run is left as it is.

        Args:
            budget_hours: New total of hours, for a run that has spent its budget.
            budget_usd: New total of dollars.

        Returns:
            A handle on the new attempt, as soon as it is submitted.

        Raises:
            RunBusy: If it is live.
            BadInput: If its budget is spent, or it would start from the beginning.
        """
        return resume(
            self.url, say=self.say, target=self.target, run_index=self.run_index, budget_hours=budget_hours,
            budget_usd=budget_usd, from_beginning=False,
        )  # fmt: skip

    def outcome(self) -> Outcome:
        """Return the current status with the receipt. The first to see the end takes the run down.

        Returns:
            Status and receipt.
        """
        status = self.current_status()
        return self._record_outcome(status, self.ensure_torn_down() if status.state.ended else None)

    def current_status(self) -> Status:
        """Return the target's status of the run, corrected if its folder was moved or is a copy of another one.

        Returns:
            The status. Nothing is taken down.
        """
        status = self.target.status(self.target_handle)
        moved, original = self._moved_from(), self._copied_from()
        if status.state is State.LOST and moved:
            return Status(state=State.RUNNING, reason=_moved_text(moved))
        if status.state is State.LOST and original:
            return Status(state=State.LOST, reason=f"this folder is a copy of {original}; no process belongs to it")
        if status.state in (State.LOST, State.UNKNOWN) and was_taken_down_before_start(self.folder):
            return TAKEN_DOWN
        return status

    def require_not_moved(self, error_type: type[HeadwayError] = TargetError) -> None:
        """Raise if the folder was moved while its run is live: a second start would split the run in two.

        Args:
            error_type: The error to raise.
        """
        moved = self._moved_from()
        if moved:
            raise error_type(
                f"{self.run} {_moved_text(moved)}", where=self.url, fix=_move_back_command(moved, self.url)
            )

    def logs(self, *, follow: bool = False, rank: int | None = None) -> Iterator[LogLine]:
        """Yield the lines that the ranks printed, by time.

        Args:
            follow: Whether to wait for further lines until the run ends.
            rank: Only this rank's lines. None: those of all ranks.

        Returns:
            The lines.
        """
        return self.target.logs(self.target_handle, follow=follow, rank=rank)

    def wait(self, on_line: LineCallback | None = None) -> Outcome:
        """Follow the run to its end. Leaving early (Ctrl-C, kill -9) does not affect the run.

        Args:
            on_line: Called with each line of the log.

        Returns:
            How it ended, and what was removed.
        """
        for line in self.logs(follow=True):
            if on_line is not None:
                on_line(line)
        outcome = self.outcome()
        # The log is followed until nothing more is heard of the run.
        if outcome.status.state in (State.PENDING, State.RUNNING):
            return self._record_outcome(Status(state=State.LOST, reason=outcome.status.reason), None)
        return outcome

    def stop(self, reason: str = "") -> Outcome:
        """Checkpoint, end, stay resumable: request it, wait for the plan's grace period, then use force.

        Args:
            reason: Why, for the run's record.

        Returns:
            How it ended, and what was removed.
        """
        self.require_not_moved()
        if not self.target.status(self.target_handle).state.ended:
            self._request_stop(reason or "asked to stop")
        receipt = self.down()
        return self._record_outcome(self.current_status(), receipt)

    def down(self) -> Receipt:
        """Stop the run and remove everything it created on its target. Its folder stays, with the receipt in it.

        Returns:
            What was removed, and what is left.
        """
        self.require_not_moved()
        original = self._copied_from()
        if original:
            self.say(f"{self.run} is a copy of {original}, which is left unchanged")
        receipt = self.target.down(self.target_handle)
        try:
            receipt = teardown.write(self.folder, receipt)
        except StoreError as error:  # teardown is what matters; the next command writes the receipt
            self.say(f"teardown.json could not be written: {error}")
        self.run_index.update_state(self.url, self._state_after_teardown())
        return receipt

    def _copied_from(self) -> str:
        origin = str(self.target_handle.details.get(ORIGIN, ""))
        return origin if origin and submission.is_run(origin) else ""

    def _moved_from(self) -> str:
        """Return where this folder was at launch if it was moved (not copied) and its run is still on the target."""
        origin = str(self.target_handle.details.get(ORIGIN, ""))
        if not origin or submission.is_run(origin) or teardown.complete_receipt(self.folder) is not None:
            return ""
        try:
            found = self.target.list_runs()
        except HeadwayError:  # the target cannot be asked: callers that need it report why
            return ""
        return origin if any(is_same_folder(each.url, origin) for each in found) else ""

    def _request_stop(self, reason: str) -> None:
        try:
            self.folder.write_json(
                STOP, {"by": submission.user_at_host(), "reason": reason, "at": submission.utc_now()}
            )
        except StoreError as error:  # a full disk must not prevent a stop: `down` sends a signal too
            self.say(f"the reason for the stop could not be recorded: {error}")

    def ensure_torn_down(self) -> Receipt | None:
        """Return the receipt of a run that has ended, taking it down now if no receipt was written.

        Returns:
            The receipt; None while the run is kept after a failure, or if only another machine can take it down.
        """
        written = teardown.complete_receipt(self.folder)
        if written is not None:
            return written
        until = teardown.kept_until(self.folder)
        if until is not None:
            self.say(teardown.describe_kept(self.folder, until))
            return None
        try:
            receipt = self.down()
        except TargetError as error:  # it belongs to another machine: the next command there writes the receipt
            self.say(str(error))
            return None
        on_run_end(self.folder, self.say)
        return receipt

    def _record_outcome(self, status: Status, receipt: Receipt | None) -> Outcome:
        self.run_index.update_state(self.url, status.state.value)
        return Outcome(run=self.run, status=status, receipt=receipt)

    def _state_after_teardown(self) -> str:
        try:
            return self.current_status().state.value
        except HeadwayError as error:  # for example a damaged plan; the run has been taken down all the same
            self.say(str(error))
            return State.LOST.value


def launch(
    plan: Plan,
    *,
    name: str | None = None,
    detach: bool = False,
    env: Mapping[str, str] | None = None,
    secrets: Sequence[str] = (),
    on_line: LineCallback | None = None,
    say: Log = _no_log,
    target: Target | None = None,
    run_index: RunIndex | None = None,
) -> RunHandle:
    """Start a run of this plan and, unless detached, follow it to its end. A failed start is taken down.

    Args:
        plan: The plan, from `headway.plan`.
        name: The run's name, which must not exist in the outputs folder. None: the job's name and a number.
        detach: Whether to return as soon as the run is submitted.
        env: Environment variables to add to the plan.
        secrets: Names of variables of this shell to pass to the run as secrets.
        on_line: Called with each line of the run's log.
        say: Called with messages for the user.
        target: The target to submit to. None: the plan's.
        run_index: The index of runs to record it in. None: this machine's.

    Returns:
        A handle on the run: its status, its log, and the ways to stop it.

    Raises:
        BadPlan: If the code or the data has changed since the plan was made.
        TargetError: If the target does not accept the run.

    Example:
        >>> import headway
        >>> plan = headway.plan(headway.Job.load("headway.yaml"))
        >>> headway.launch(plan, name="first").outcome().status.state.value
        'finished'
    """
    target, run_index = target or targets.of_plan(plan), run_index or RunIndex()
    verify_plan(plan, target)
    plan = _with_overrides(plan, target, env or {}, secrets)
    _warn_ignored_timing(plan, say)
    _check_online(plan, target)
    send_code(plan)
    folder = _claim_folder(plan, name, run_index)
    try:
        run_index.record(_index_row(plan, folder, submission.record_submission(folder, plan)["created_at"]))
        list_code(plan, folder)
        handle = target.submit(plan, folder.name)
        submission.save_handle_details(folder, handle)
        _report_note(handle, say)
    except BaseException:  # Ctrl-C too: part of the run may exist
        _undo_start(folder, target, plan, run_index, say)
        raise
    run_handle = RunHandle(
        run=folder.name, url=folder.url, target_handle=handle, target=target, run_index=run_index, say=say
    )
    if not detach:
        run_handle.wait(on_line)
    return run_handle


def _report_note(handle: Handle, say: Log) -> None:
    """Pass on what the target has to tell the user about this start."""
    if handle.details.get("note"):
        say(str(handle.details["note"]))


def open_run(
    run_url: str, *, say: Log = _no_log, target: Target | None = None, run_index: RunIndex | None = None
) -> RunHandle:
    """Return a handle on an existing run, from its folder alone. A damaged plan does not prevent taking it down."""
    folder = RunFolder(open_store(run_url))
    record = submission.read(folder)
    return RunHandle(
        run=folder.name,
        url=folder.url,
        target_handle=Handle(
            target=record["target"], run=folder.name, url=folder.url, details=_details(folder, record)
        ),
        target=target or targets.build(record["kind"], record["options"]),
        run_index=run_index or RunIndex(),
        say=say,
    )


def _details(folder: RunFolder, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details of the last start, with ORIGIN if they were recorded for another folder (copied or moved)."""
    details, origin = dict(record.get("details", {})), submission.origin_url(folder, dict(record))
    return {**details, ORIGIN: origin} if origin else details


def resume(
    run_url: str,
    *,
    move: Migration | None = None,
    say: Log = _no_log,
    target: Target | None = None,
    run_index: RunIndex | None = None,
    patience_s: float = lease.STALE_S,
    budget_hours: float | None = None,
    budget_usd: float | None = None,
    from_beginning: bool = True,
) -> RunHandle:
    """Resume with the same plan, as a new attempt. Raises RunBusy for a live run; a spent budget needs a new total.

    With `move`, resumes on another target, with the recorded code and the batches in the same order, or with changed
    code. Raises StartsOver without `from_beginning` if the program has trained and cannot continue.

    A finished run is left as it is, which is not an error. A run on a host that cannot be seen from here is watched
    until its lease has gone stale.
    """
    from headway.launcher import migrate

    run = open_run(run_url, say=say, target=target, run_index=run_index)
    recorded = run.folder.plan()
    migrate.require_not_migrated(run.folder)
    if _require_ended(run, patience_s).state is State.FINISHED:
        say(f"{run.run} is already finished")
        return run
    _warn_ignored_timing(recorded, say)
    with_budget = lease.with_budget(recorded, hours=budget_hours, usd=budget_usd)
    lease.require_budget_left(with_budget, lease.spent_s(run.folder), run.run)
    if not from_beginning:
        _require_continuation(run, recorded)
    if with_budget != recorded:  # nobody runs it now: the next attempt's supervisor is the first to read it
        run.folder.store.write(PLAN, with_budget.to_json().encode())
        recorded = with_budget
    if move is not None:
        return _resume_on_other_target(run, recorded, move)
    # The folder may have been moved or copied since: resume where it is now.
    plan = replace(recorded, job={**recorded.job, "outputs": run.url.rpartition("/")[0]})
    send_code(plan, also_at=str(recorded.job["outputs"]))
    _release_copied_lease(run.folder)
    _log_resume_kind(run, plan)
    submission.record_resubmission(run.folder, after=newest_attempt(run.folder))
    try:
        run.folder.store.delete(STOP)
        list_code(plan, run.folder)
        handle = run.target.submit(plan, run.run)
    except BaseException as error:
        submission.record_failed_submission(run.folder, error)
        raise
    submission.save_handle_details(run.folder, handle)
    _report_note(handle, run.say)
    run.run_index.record(_index_row(plan, run.folder, submission.read(run.folder)["created_at"]))
    return replace(run, target_handle=handle)


class StartsOver(BadInput):
    """A resume would start the program from the beginning, and nobody has agreed to that."""


def _require_continuation(run: RunHandle, plan: Plan) -> None:
    """Raise StartsOver if the program has trained and would start from the beginning."""
    if plan.resume != BEGINNING or not any(event.get("kind") == "started" for event in run.folder.events()):
        return
    spent = lease.spent_s(run.folder)
    usd = lease.spent_usd(plan, spent)
    so_far = f"{spent:.0f} s" + (f", ${usd:.2f}" if usd else "")
    raise StartsOver(
        f"{run.run} would start from the beginning: its program loads nothing that it has saved (so far: {so_far})",
        fix=f"headway resume {run.run} --from-beginning",
    )


def _log_resume_kind(run: RunHandle, plan: Plan, changed: Sequence[str] = ()) -> None:
    """Tell the user what the next attempt does, if that is less than an exact resume."""
    kind = resume_recorded(plan)
    if changed:
        from headway.packaging.code_changes import name_files

        files = name_files(list(changed))
        run.say(f"{run.run}: {describe_next_start(kind)}, with changed code ({files}): not an exact resume")
    elif kind != EXACT:
        run.say(f"{run.run}: {describe_next_start(kind)}")


def _resume_on_other_target(run: RunHandle, recorded: Plan, move: Migration) -> RunHandle:
    """Resume on another target. If it cannot be started there, the run's folder is restored to what it was."""
    from headway.launcher import migrate

    _release_copied_lease(run.folder)
    # We can see from here that its holder's process is gone; another machine could not, and would wait.
    lease.release_dead_holder(run.folder.store, lambda record: record.alive_at(run.folder.url) is False)
    folder, plan = migrate.prepare_migration(run, recorded, move)
    target = targets.of_plan(plan)
    old_submission = submission.read(folder)
    try:
        send_code(plan, also_at=str(recorded.job["outputs"]))
        submission.record_resubmission(
            folder, after=newest_attempt(folder), plan=plan, code=move.code, changed=move.changed
        )
        folder.store.delete(STOP)
        list_code(plan, folder)
        _log_resume_kind(run, plan, move.changed)
        handle = target.submit(plan, folder.name)
    except BaseException as error:
        if folder.url == run.url:
            migrate.restore(folder, recorded)
            folder.write_json(SUBMISSION, old_submission)
        else:
            submission.record_failed_submission(folder, error)
        raise
    submission.save_handle_details(folder, handle)
    _report_note(handle, run.say)
    run.run_index.record(_index_row(plan, folder, submission.read(folder)["created_at"]))
    return replace(run, url=folder.url, target_handle=handle, target=target)


def follow(run_url: str, on_line: LineCallback | None = None, *, say: Log = _no_log) -> Outcome:
    """Follow a run to its end; the outcome has the exit code."""
    return open_run(run_url, say=say).wait(on_line)


def observe(run_url: str, *, say: Log = _no_log) -> Outcome:
    """Return a run's outcome now, as its target sees it; take it down if it has ended and nobody has done so yet."""
    return open_run(run_url, say=say).outcome()


def logs(run_url: str, *, follow: bool = False, rank: int | None = None) -> Iterator[LogLine]:
    """Yield what a run printed; with `follow`, until it ends."""
    return open_run(run_url).logs(follow=follow, rank=rank)


def stop(run_url: str, reason: str = "", *, say: Log = _no_log) -> Outcome:
    """See `RunHandle.stop`."""
    return open_run(run_url, say=say).stop(reason)


def down(run_url: str, *, say: Log = _no_log) -> Receipt:
    """See `RunHandle.down`."""
    return open_run(run_url, say=say).down()


def _check_online(plan: Plan, target: Target) -> None:
    """Run the target's online checks before a name is claimed. Planning is offline and did not."""
    problems = target.online(plan)
    if problems:
        raise BadJob(problems)


def _with_overrides(plan: Plan, target: Target, env: Mapping[str, str], secrets: Sequence[str]) -> Plan:
    if not env and not secrets:
        return plan
    missing = [name for name in secrets if name not in os.environ]
    if missing:
        raise BadInput(f"the environment variable {missing[0]} is not set", fix=f"export {missing[0]}=…")
    given_secrets = {name: {"ref": f"env:{name}", "as": "env"} for name in secrets}
    job = {**plan.job, "env": {**plan.job["env"], **env}, "secrets": {**plan.job["secrets"], **given_secrets}}
    plan = replace(plan, job=job)
    return replace(plan, requests=tuple(target.render(plan)))


def _warn_ignored_timing(plan: Plan, say: Log) -> None:
    for line in ignored_timing({**os.environ, **plan.job.get("env", {})}):
        say(line)


def _claim_folder(plan: Plan, name: str | None, run_index: RunIndex) -> RunFolder:
    """Claim a run folder: the first to write plan.json has the name."""
    outputs = str(plan.job["outputs"])
    names = iter([checked_name(name)]) if name else candidate_names(plan, run_index)
    require_conditional_put(open_store(outputs))
    for run in names:
        folder = RunFolder(open_store(join(outputs, run)))
        try:
            folder.store.write(PLAN, plan.to_json().encode(), when=ABSENT)
            return folder
        except Conflict:
            continue
        except BaseException:  # Ctrl-C too: a folder without a plan belongs to no run
            _remove_if_empty(folder)
            raise
    fix = f"headway resume {name}, or choose another --name"
    raise BadInput(f"a run named {name} already exists", where=outputs, fix=fix)


def _require_ended(run: RunHandle, patience_s: float) -> Status:
    """Return the status once it is certain that nobody runs it and what it left has been taken down."""
    run.require_not_moved(RunBusy)
    status = run.current_status()
    if not status.state.ended:
        status = _wait_until_stale(run, patience_s) or status
    if not status.state.ended:
        raise RunBusy(f"{run.run} is {status.state.value} ({status.reason})", fix=f"headway stop {run.run}")
    run.ensure_torn_down()  # a supervisor may still be shutting down
    return status


def _wait_until_stale(run: RunHandle, patience_s: float) -> Status | None:
    """Watch a holder that cannot be seen from here; once its lease is stale, free it so that nobody waits again."""
    store = run.folder.store
    record, version = lease.read(store)
    if record is None or record.holder is None or record.alive_at(run.url) is not None:
        return None
    run.say(f"waiting up to {patience_s:.0f} s to see whether {run.run} is still running on {record.host}")
    poller = StatusPoller(run.folder, stale_s=patience_s)
    for _ in poll(min(1.0, patience_s / 10)):
        if (status := poller.status()).state.ended or lease.read(store)[1] != version:
            break
    if status.state is State.LOST and not lease.release_dead_holder(store, lambda record: True, version=version):
        return None  # it was renewed after all
    return status


def _release_copied_lease(folder: RunFolder) -> None:
    """Free the lease in a copied folder: it is the original's, which may be live, and nobody holds the copy."""
    if submission.copied_from(folder):
        lease.release_dead_holder(folder.store, lambda record: True)


def _moved_text(origin: str) -> str:
    return f"was moved from {origin} while it was running; its processes still use the old folder"


def _move_back_command(origin: str, url: str) -> str:
    path = local_path(origin)
    if path is not None and not path.exists():
        return f"mv {url} {origin}, then headway stop {origin}"
    # Its supervisor has written there again, or will: without its lease it ends by itself.
    return (
        f"it stops by itself in about {lease.RENEW_S:.0f} s, because its lease is missing; then: headway resume {url}"
    )


def _index_row(plan: Plan, folder: RunFolder, created_at: str) -> RunRow:
    return RunRow(
        name=folder.name,
        url=folder.url,
        target=plan.target,
        job=str(plan.job["name"]),
        created=submission.unix_seconds(created_at),
        state=State.PENDING.value,
    )


def _undo_start(folder: RunFolder, target: Target, plan: Plan, run_index: RunIndex, log: Log) -> None:
    """Undo a failed start: take down, list again, and if nothing is left and nothing ran, leave no trace."""
    name = folder.name
    try:
        receipt = target.down(Handle(target=plan.target, run=name, url=folder.url))
        if receipt.left or newest_attempt(folder):
            teardown.write(folder, receipt)
            log(f"{name} could not be started; left behind: {', '.join(receipt.left) or 'only its folder'}")
            return
        # The plan last: while it exists, the run can be found.
        for key in (RECEIPT, STOP, CODE_LISTING, SUBMISSION, PLAN):
            folder.store.delete(key)
    except HeadwayError as error:  # reported besides the error of the start, which the caller raises
        log(f"{name} could not be started, and removing it failed: {error}\n    fix: headway down {folder.url}")
        return
    _remove_if_empty(folder)
    run_index.remove(folder.url)
    log(f"{name} could not be started; everything it had created was removed")


def _remove_if_empty(folder: RunFolder) -> None:
    """Remove a local folder that holds no objects. Buckets have no folders."""
    path = local_path(folder.url)
    if path is not None and not any(folder.store.list()):
        shutil.rmtree(path, ignore_errors=True)
