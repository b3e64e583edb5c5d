"""Rent machines with the user's commands `up`, `list` and `down`, and give them back.

Guarantees:
    `down` runs for every id ever recorded, whatever `list` says.
    An empty answer of `list` counts only for machines that the same command has shown before.
    A `list` that fails says nothing: the machine counts as left, and its record stays.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from shutil import which

from headway.core import platform
from headway.core.errors import TargetError
from headway.core.retry import Backoff, poll, wait_until
from headway.targets.ssh.options import Options
from headway.targets.ssh.rental import (
    REQUESTED,
    UP,
    ProvisionedMachine,
    Records,
    fill_placeholders,
    parse_bare_ids,
    parse_machines,
)

# Shell for `up`, `list` and `down`: a pipeline fails when any part of it fails


_HIDDEN_FAILURE = re.compile(r"(\|\||;|\n)\s*(true|:|exit\s+0|/bin/true|/usr/bin/true)\s*([;)}\n]|$)")


@cache
def shell_command() -> tuple[str, ...]:
    """Return the command for bash in POSIX mode with pipefail.

    Without bash it is sh, with pipefail if sh supports it.
    """
    bash = which("bash")
    if bash is not None:
        return (bash, "--posix", "-o", "pipefail", "-c")
    has_pipefail = subprocess.run(["/bin/sh", "-o", "pipefail", "-c", ":"], capture_output=True).returncode == 0
    return ("/bin/sh", "-o", "pipefail", "-c") if has_pipefail else ("/bin/sh", "-c")


def hides_failures(command: str) -> str:
    """Return why this command may exit with 0 although a part of it failed, or an empty string."""
    found = _HIDDEN_FAILURE.search(command)
    if found is not None:
        return f"`{found[0].strip()}` hides its failures"
    if "|" in command and "pipefail" not in shell_command():
        return "no shell here fails when a part of a pipe does: install bash"
    return ""


UP_S, COMMAND_TIMEOUT_S = 3600.0, 300.0  # provisioning may take long
LISTED_WITHIN_S = 60.0  # for `list` to show what `up` has just created: providers are eventually consistent
RETRY_S = 5.0  # for a `list` that fails after `down`
POLL_S, LONGEST_POLL_S = 0.2, 10.0
SIGPIPE = 141  # exit code of a command that wrote to a closed pipe
Say = Callable[[str], None]


def _backoff() -> Backoff:
    return Backoff(POLL_S, LONGEST_POLL_S, factor=1.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """One answer of `list`: its lines and the machines that they name, or why the command failed."""

    lines: tuple[str, ...] = ()
    machine_ids: tuple[str, ...] = ()  # ids
    unknown_lines: tuple[str, ...] = ()  # lines that name no machine on record
    error: TargetError | None = None
    available: bool = True  # False: the target has no `list`


@dataclass(frozen=True, kw_only=True, slots=True)
class Released:
    """Result of releasing machines: their names, as in the receipt."""

    created: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()  # `down` has succeeded, and no `list` shows it
    left: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()  # removed according to `down` alone
    rental: ProvisionedMachine | None = None  # updated with what the commands printed


class Provider:
    """Runs the user's `up`, `list` and `down`."""

    def __init__(self, options: Options, records: Records, log: Say) -> None:
        self._options, self._records, self._log = options, records, log

    # Provisioning

    def provision(self, rental: ProvisionedMachine, nodes: int) -> ProvisionedMachine:
        """Run `up` to completion, in its own session: the terminal's Ctrl-C and hang-up do not reach it directly."""
        process = self._start_up(rental, nodes)
        rental = self._records.write(replace(rental, pid=process.pid, started=platform.process_start_time(process.pid)))
        try:
            code = process.wait(UP_S)
        except BaseException:  # Ctrl-C: kill it with its children; the caller finds and releases what it created
            _kill_group(process)
            raise
        rental = self.with_printed_machines(rental)
        why = self._unusable(rental, code, nodes)
        if why:
            place = self._records.place(rental.url)
            last = _last_line(place / "up.err") or _last_line(place / "up.out")
            fix = _fix_of(code) or "it must print host=ADDRESS id=ID for each machine, and end with 0"
            raise TargetError(f"`up` {why}{f': {last}' if last else ''}", where="targets", fix=fix)
        return self._records.write(replace(rental, state=UP))

    def _start_up(self, rental: ProvisionedMachine, nodes: int) -> subprocess.Popen[bytes]:
        assert self._options.up is not None
        place = self._records.place(rental.url)
        command = fill_placeholders(self._options.up, run=rental.run)
        self._log(f"up: {command}")
        place.mkdir(parents=True, exist_ok=True)
        with open(place / "up.out", "wb") as out, open(place / "up.err", "wb") as err:
            # `up` inherits the lock through its standard output: if this process is killed before it records the pid,
            # the lock shows that `up` is still running.
            fcntl.flock(out, fcntl.LOCK_EX)
            return subprocess.Popen(
                [*shell_command(), command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, "HEADWAY_RUN": rental.run, "HEADWAY_NODES": str(nodes)},
                start_new_session=True,
            )

    def _unusable(self, rental: ProvisionedMachine, code: int, nodes: int) -> str:
        """Return why the result of `up` cannot be used, or an empty string."""
        if code:
            return f"ended with {code}"
        if len(rental.machines) != nodes:
            return f"named {len(rental.machines)} machines, and {nodes} are needed"
        if "{id}" in str(self._options.down) and not all(machine.id for machine in rental.machines):
            return "named a machine without id=, and `down` needs {id}"
        return ""

    def with_printed_machines(self, rental: ProvisionedMachine) -> ProvisionedMachine:
        """Return the rental updated with the machines that `up` has printed so far."""
        place = self._records.place(rental.url)
        try:
            text = (place / "up.out").read_text(errors="replace")
        except OSError:
            return rental
        machines = rental.machines or tuple(parse_machines(text, place / "known_hosts"))
        found = dict.fromkeys([*rental.found, *parse_bare_ids(text)])
        named = {machine.id for machine in machines}
        return replace(rental, machines=machines, found=tuple(id for id in found if id not in named))

    def wait_until_listed(self, rental: ProvisionedMachine) -> ProvisionedMachine:
        """Poll `list` until it shows what `up` has just created. Only then is an empty answer trusted later."""
        if self._options.list is None:
            return rental
        for _ in poll(_backoff(), within_s=LISTED_WITHIN_S):
            listing = self.list_machines(rental)
            rental = self._record_listed(rental, listing)
            missing = [id for id in rental.ids if id not in rental.listed]
            if not missing:
                return rental
        why = f"{listing.error.problem.what}: it cannot show" if listing.error else "`list` does not show"
        ids = ", ".join(id or "the machine" for id in missing)
        command_line = fill_placeholders(self._options.list, run=rental.run, id=missing[0])
        self._log(
            f"{why} {ids}, which `up` has just made: receipts cannot rely on it, and an empty answer of it will not be "
            f"believed\n    fix: it must print a line with the machine's id, address or run while the machine is "
            f"there; run it to see: {command_line}"
        )
        return rental

    # Listing

    def list_machines(self, rental: ProvisionedMachine) -> Listing:
        """Run `list` once."""
        command, ids = self._options.list, [id for id in rental.ids if id]
        if command is None:
            return Listing(available=False)
        by_id = "{id}" in command and bool(ids)
        if "{run}" not in command and not by_id:
            return Listing(error=TargetError("`list` needs an {id}, and none is known", fix="{run} in `list`"))
        answers: dict[str, list[str]] = {}
        for id in ids if by_id else [""]:
            try:
                text = self._run("list", command, rental, id)
            except TargetError as error:
                return Listing(error=error)
            answers[id] = [line.strip() for line in text.splitlines() if line.strip()]
        lines = tuple(dict.fromkeys(line for rows in answers.values() for line in rows))
        if by_id:
            return Listing(lines=lines, machine_ids=tuple(id for id, rows in answers.items() if rows))
        return _match_lines(rental, lines)

    def all_gone(self, rental: ProvisionedMachine) -> bool:
        """Return whether a trusted `list` shows none of the machines."""
        listing = self.list_machines(rental)
        return listing.available and listing.error is None and not listing.lines and not self._distrust_reason(rental)

    def _record_listed(self, rental: ProvisionedMachine, listing: Listing) -> ProvisionedMachine:
        """Record which machines `list` shows."""
        if not listing.machine_ids:
            return rental
        earlier = rental.listed if rental.listed_by == self._options.list else ()
        listed = tuple(dict.fromkeys([*earlier, *listing.machine_ids]))
        return self._update_record(replace(rental, listed=listed, listed_by=str(self._options.list)))

    def _distrust_reason(self, rental: ProvisionedMachine) -> str:
        """Return why an empty answer of `list` is not trusted, or an empty string."""
        command = self._options.list
        if command is None:
            return "there is no `list`"
        hidden_failure = hides_failures(command)
        if hidden_failure:
            return f"an empty answer of `list` is not trusted: {hidden_failure}"
        proven = rental.listed_by == command and rental.ids and set(rental.ids) <= set(rental.listed)
        return "" if proven else "an empty answer of `list` is not trusted: it has never shown the machine"

    # Releasing

    def release(self, rental: ProvisionedMachine) -> Released:
        """Run `down` for every recorded id, then check with `list`.

        Never raises: failures are logged, and those machines are reported as left.
        """
        self._wait_for_up(rental)
        if self._never_requested(rental):
            return Released()
        rental = self._update_record(self.with_printed_machines(rental))
        before = self.list_machines(rental)
        if not any(rental.ids) and before.lines:
            rental = self._update_record(replace(rental, found=tuple(map(_id_of, before.lines))))
            before = replace(before, machine_ids=rental.found, unknown_lines=())
        rental = self._record_listed(rental, before)
        ids = self._ids_to_release(rental)
        if not ids:
            return self._no_known_machine(rental, before)
        failed = self._run_down(rental, ids)
        succeeded = [id for id in ids if id not in failed]
        rental = self._update_record(replace(rental, returned=tuple(dict.fromkeys([*rental.returned, *succeeded]))))
        return self._release_result(rental, ids, failed, self._wait_until_gone(rental, wait=bool(succeeded)))

    def _ids_to_release(self, rental: ProvisionedMachine) -> list[str]:
        """Return the ids to run `down` for. An empty id means a machine that is known only by its run."""
        by_id = "{id}" in str(self._options.down)
        ids = [id for id in dict.fromkeys([*rental.ids, *rental.returned]) if id]
        return ids or ([] if by_id else [""])

    def _run_down(self, rental: ProvisionedMachine, ids: Sequence[str]) -> dict[str, TargetError]:
        """Run `down` for each id, once per distinct command line; return the failures."""
        command = str(self._options.down)
        answers: dict[str, TargetError | None] = {}
        for id in ids:
            command_line = fill_placeholders(command, run=rental.run, id=id)
            if command_line in answers:
                continue
            try:
                self._run("down", command, rental, id)
                answers[command_line] = None
            except TargetError as error:
                answers[command_line] = error
        found = {id: answers[fill_placeholders(command, run=rental.run, id=id)] for id in ids}
        return {id: error for id, error in found.items() if error is not None}

    def _wait_until_gone(self, rental: ProvisionedMachine, *, wait: bool) -> Listing:
        """Poll `list` until it shows nothing, for at most as long as a machine may take to disappear."""
        gone_s = self._options.gone if wait else 0.0
        for waited_s in poll(_backoff(), within_s=max(gone_s, RETRY_S)):
            listing = self.list_machines(rental)
            if not (listing.lines or listing.error) or waited_s >= (RETRY_S if listing.error else gone_s):
                break
        return listing

    def _release_result(
        self, rental: ProvisionedMachine, ids: list[str], failed: dict[str, TargetError], listing: Listing
    ) -> Released:
        """Decide which machines are gone, by `down` and by `list`.

        While a line names an unknown machine, none counts as gone.
        """
        created = tuple(map(_machine_name, ids))
        left = [id for id in ids if id in listing.machine_ids]
        distrust_reason = self._distrust_reason(rental)
        if listing.error is not None:
            self._log(f"whether {', '.join(created)} is gone is unknown: {listing.error}")
            left = list(ids)
        elif distrust_reason:
            left += [id for id in failed if id not in left and id not in rental.returned]
        for id, error in failed.items():
            self._log_failed_release(rental, id, error, left=bool(id in left or listing.unknown_lines))
        names = (*map(_machine_name, left), *(f"machine {line}" for line in listing.unknown_lines))
        gone = [] if listing.unknown_lines else [id for id in ids if id not in left]
        still_listed = (
            ids if listing.unknown_lines else listing.machine_ids
        )  # `down` succeeded, but the machine is still listed
        returned = dict.fromkeys([*(id for id in rental.returned if id not in still_listed), *gone])
        rental = replace(rental, returned=tuple(returned))
        removed = tuple(_machine_name(id) for id in gone if id not in failed)
        if names:
            self._records.write(rental)  # also if another client rented it: `gc` must show it
        unverified = created if distrust_reason and not names else ()
        if unverified:
            self._log(f"cannot verify that {', '.join(created)} is gone: {distrust_reason}")
        return Released(created=created, removed=removed, left=names, unverified=unverified, rental=rental)

    def _no_known_machine(self, rental: ProvisionedMachine, listing: Listing) -> Released:
        """Report that `up` was started but neither it nor `list` named a machine to run `down` for."""
        why = str(listing.error.problem.what) if listing.error else self._distrust_reason(rental)
        what = f"no machine of {rental.run} is known, and it is unknown whether `up` created one: {why}"
        place = self._records.place(rental.url)
        if self._records.read(rental.url) is None:
            self._log(f"{what}; no rental of it is on record here")
            return Released()
        self._log(
            f"{what}\n    fix: look for {rental.run} at your provider; if no such machine is there: rm -r {place}"
        )
        name = f"machine that `up` may have made for {rental.run}"
        return Released(created=(name,), left=(name,))

    def _log_failed_release(self, rental: ProvisionedMachine, id: str, error: TargetError, *, left: bool) -> None:
        if not left:
            earlier = "`down` had succeeded before" if id in rental.returned else "`list` no longer shows it"
            self._log(f"{error.problem.what}: {_machine_name(id)} counts as gone, as {earlier}")
            return
        place = self._records.place(rental.url)
        self._log(
            f"{_machine_name(id)} could not be released, and may still be billed: {error.problem.what}\n"
            f"    fix: {error.problem.fix}\n"
            f"    then: headway down {rental.url}   or, with another `down` in the job file: "
            f"headway gc -f FILE --on {rental.target}   or, if your provider shows that it is gone: rm -r {place}"
        )

    def _update_record(self, rental: ProvisionedMachine) -> ProvisionedMachine:
        """Write the updated record if there is one here; do not create one for another client's rental."""
        recorded = self._records.read(rental.url)
        return rental if recorded is None or recorded == rental else self._records.write(rental)

    def _never_requested(self, rental: ProvisionedMachine) -> bool:
        """Return whether the client was killed after writing the record and before starting `up`.

        Starting `up` opens its output file first.
        """
        recorded = self._records.read(rental.url)
        if recorded is None or recorded.state != REQUESTED or recorded.ids or recorded.returned:
            return False
        return not (self._records.place(rental.url) / "up.out").exists()

    def _wait_for_up(self, rental: ProvisionedMachine) -> None:
        """Wait for a killed client's `up` that may still be running.

        Otherwise a machine that it is about to create would be missed.
        """
        wait_until(lambda: not self._up_is_running(rental), POLL_S, within_s=UP_S)

    def _up_is_running(self, rental: ProvisionedMachine) -> bool:
        if rental.pid or rental.state != REQUESTED:
            return platform.is_alive(rental.pid, rental.started)
        try:
            with open(self._records.place(rental.url) / "up.out", "rb") as out:
                fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _run(self, name: str, command: str, rental: ProvisionedMachine, id: str) -> str:
        command_line = fill_placeholders(command, run=rental.run, id=id)
        if name == "down":
            self._log(f"down: {command_line}")
        try:
            process = subprocess.run(
                [*shell_command(), command_line],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=COMMAND_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise TargetError(
                f"`{name}` has not ended for {COMMAND_TIMEOUT_S:.0f} s: {command_line}", fix=command_line
            ) from None
        if process.returncode:
            last = next((line for line in reversed(process.stderr.splitlines()) if line.strip()), "it gave no reason")
            what = f"`{name}` ended with {process.returncode}: {last.strip()[:300]}"
            raise TargetError(what, fix=_fix_of(process.returncode, name, command_line))
        return process.stdout


def _fix_of(code: int, name: str = "up", command_line: str = "") -> str:
    """Return the suggested fix for a command that failed."""
    if code == SIGPIPE:
        hint = "141: a part of the pipe wrote when nobody read any more (`yes | …`, `… | head`); write it without"
        return f"{hint}: {command_line}" if command_line else hint
    if name == "list" and "grep" in command_line:
        hint = "a grep that finds nothing ends with 1: awk -v run={run} '$2 == run' with 0"
        return f"run it to see: {command_line}   ({hint})"
    return f"run it to see: {command_line}" if command_line else ""


def _match_lines(rental: ProvisionedMachine, lines: tuple[str, ...]) -> Listing:
    """Match lines to machines by id or address.

    If none matches, all machines are shown when there is a line with the run for each.
    """
    keys = {machine.id: [word for word in (machine.id, machine.host) if word] for machine in rental.machines}
    keys |= {id: [id] for id in rental.found}
    lines_of = {
        id: {line for line in lines for word in known if _contains_word(line, word)} for id, known in keys.items()
    }
    shows = [id for id, found in lines_of.items() if found]
    by_run = [line for line in lines if _contains_word(line, rental.run)]
    if not shows and keys and len(by_run) >= len(keys):
        return Listing(lines=lines, machine_ids=tuple(keys))
    strange = [line for line in lines if not any(line in found for found in lines_of.values())]
    return Listing(lines=lines, machine_ids=tuple(shows), unknown_lines=tuple(strange))


def _contains_word(line: str, word: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", line) is not None


def _machine_name(id: str) -> str:
    return f"machine {id or '(unnamed)'}"


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    for number, within_s in ((signal.SIGTERM, 30.0), (signal.SIGKILL, 10.0)):
        try:
            os.killpg(process.pid, number)
            process.wait(within_s)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _id_of(line: str) -> str:
    match = re.search(r"(?:^|\s)id=(\S+)", line)
    return match[1] if match else line.split()[0]


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
